"""`Curriculum`: which lesson comes next, by how well each has gone lately.

A lesson is ``locked`` until all lessons that it depends on have been learnt once, then ``active``, and ``graduated``
once its success rate reaches its threshold. A graduated lesson whose rate falls below its threshold by more than the
margin (or below half of its threshold, where the margin is larger than that) is active again; what depends on it
stays unlocked. Both are judged on the latest results of a lesson, the window, when there are enough of them.

Active lessons are drawn the more often the nearer their success is to one half, where there is most to learn;
none gets less than a tenth of the weight of the one drawn most. Graduated ones share a small part of the draws,
so that a regression is noticed. Each draw takes one number from the generator.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hookline._engine.errors import CheckpointError, OptionError, UnknownNameError, closest
from hookline._engine.metrics import whole
from hookline.rl.rollouts.config import CurriculumConfig, Lesson

logger = logging.getLogger("hookline")

Status = Literal["locked", "active", "graduated"]
STATUSES = ("locked", "active", "graduated")
LEAST_WEIGHT = 0.1
ROUNDING = 1e-9
"""How far a rate may be from a threshold and still count as the same: 0.95 - 0.1 is not quite 0.85."""


@dataclass(frozen=True, slots=True)
class CurriculumEvent:
    """A lesson that was unlocked, has been learnt, or was forgotten.

    Attributes:
        step: That of the results that made it so.
        success_rate: The lesson's at that time; None where it has no results yet.
    """

    kind: Literal["unlocked", "graduated", "regressed"]
    lesson: str
    step: int
    success_rate: float | None


@dataclass(slots=True)
class _Progress:
    """How far a lesson has come."""

    lesson: Lesson
    results: deque[float]
    status: Status = "locked"
    was_learnt: bool = False

    @property
    def rate(self) -> float | None:
        return math.fsum(self.results) / len(self.results) if self.results else None

    @property
    def weight(self) -> float:
        """The variance of a result, scaled to 1 at a success of one half; few results count as near that."""
        success = (sum(self.results) + 1) / (len(self.results) + 2)
        return max(LEAST_WEIGHT, 4 * success * (1 - success))


class Curriculum:
    """Draws lessons, and keeps account of how they go.

    Args:
        config: Its lessons and settings, as a `CurriculumConfig` or a mapping of its arguments.
        seed: Of the draws for which no generator is handed in.
    """

    def __init__(self, config: CurriculumConfig | Mapping[str, Any], seed: int = 0) -> None:
        self.config = config if isinstance(config, CurriculumConfig) else CurriculumConfig(**config)
        self.seed = seed
        self._draws = 0
        self._events: list[CurriculumEvent] = []
        window = self.config.window
        self._progress = {lesson.id: _Progress(lesson, deque(maxlen=window)) for lesson in self.config.lessons}
        self._unlock_first()

    @property
    def lessons(self) -> list[Lesson]:
        """All lessons, in the order given."""
        return [progress.lesson for progress in self._progress.values()]

    @property
    def locked(self) -> list[str]:
        """The ids of lessons that wait for others."""
        return self._having("locked")

    @property
    def active(self) -> list[str]:
        """The ids of lessons that are being learnt."""
        return self._having("active")

    @property
    def graduated(self) -> list[str]:
        """The ids of lessons that have been learnt."""
        return self._having("graduated")

    def lesson(self, lesson_id: str) -> Lesson:
        """The lesson with an id."""
        return self._of(lesson_id).lesson

    def states(self) -> dict[str, Status]:
        """How each lesson stands."""
        return {key: progress.status for key, progress in self._progress.items()}

    def success_rate(self, lesson_id: str) -> float | None:
        """The mean of a lesson's latest results; None where there are none."""
        return self._of(lesson_id).rate

    def probabilities(self) -> dict[str, float]:
        """How likely each lesson is to be drawn next; locked ones are left out."""
        active, graduated = self._weights("active"), self._weights("graduated")
        share = self.config.review_share if active and graduated else float(bool(graduated))
        return _scaled(active, 1 - share) | _scaled(graduated, share)

    def sample_lesson(self, rng: random.Random | None = None) -> Lesson:
        """Draw the lesson to go on with; without a generator, by the seed and the number of draws so far."""
        if rng is None:
            rng = random.Random(f"{self.seed}:{self._draws}")  # noqa: S311 - sampling, not secrets
            self._draws += 1
        likely = self.probabilities()
        (drawn,) = rng.choices(list(likely), list(likely.values()))
        return self._progress[drawn].lesson

    def record(self, lesson_id: str, successes: Sequence[bool] | float, step: int, *, n: int = 1) -> None:
        """Take note of results, and unlock, graduate or take back lessons accordingly.

        Results of a locked lesson are kept, and count once it is unlocked.

        Args:
            successes: Whether each task was solved; or a success rate, which stands for ``n`` results.
        """
        progress = self._of(lesson_id)
        progress.results.extend(_results(successes, n, self.config.window))
        self._settle(progress, step)

    def take_events(self) -> list[CurriculumEvent]:
        """What has happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to go on from here; JSON can hold it."""
        lessons = {
            key: {"status": each.status, "was_learnt": each.was_learnt, "results": list(each.results)}
            for key, each in self._progress.items()
        }
        return {"lessons": lessons, "draws": self._draws, "events": [asdict(event) for event in self._events]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        A lesson that the state does not know begins anew; one that the curriculum no longer has is left out, and
        said so.

        Raises:
            CheckpointError: The state is not that of a curriculum; nothing has changed then.
        """
        try:
            events = [CurriculumEvent(**event) for event in state["events"]]
            saved = {key: _restored(each) for key, each in state["lessons"].items()}
            draws = int(state["draws"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{state!r:.200} is not the state of a curriculum ({error!r}).") from error
        if unknown := sorted(set(saved) - set(self._progress)):
            logger.warning("Curriculum: the saved lessons %s are not there any more, and are left out.", unknown)
        for key, progress in self._progress.items():
            status, was_learnt, results = saved.get(key, ("locked", False, []))
            progress.status, progress.was_learnt = status, was_learnt
            progress.results = deque(results, maxlen=self.config.window)
        self._draws, self._events = draws, events
        self._unlock_first()

    def _of(self, lesson_id: str) -> _Progress:
        if lesson_id not in self._progress:
            raise UnknownNameError(f"There is no lesson {lesson_id!r}. {closest(str(lesson_id), self._progress)}")
        return self._progress[lesson_id]

    def _having(self, status: Status) -> list[str]:
        return [key for key, progress in self._progress.items() if progress.status == status]

    def _weights(self, status: Status) -> dict[str, float]:
        return {key: self._progress[key].weight for key in self._having(status)}

    def _unlock_first(self) -> None:
        """Make active what need not wait, without an event: it is so from the start."""
        for progress in self._waiting_for_nothing():
            progress.status = "active"

    def _waiting_for_nothing(self) -> list[_Progress]:
        return [
            each
            for each in self._progress.values()
            if each.status == "locked" and all(self._progress[key].was_learnt for key in each.lesson.depends_on)
        ]

    def _unlock(self, step: int) -> None:
        unlocked = self._waiting_for_nothing()
        for each in unlocked:
            each.status = "active"
            self._report("unlocked", each, step)
        for each in unlocked:  # it may have been evaluated while it was locked
            self._settle(each, step)

    def _settle(self, progress: _Progress, step: int) -> None:
        """Bring a lesson's status up to date with its results, and then those of lessons that wait for it."""
        if progress.status == "locked" or len(progress.results) < self.config.min_results:
            return
        rate = progress.rate or 0.0
        threshold = progress.lesson.threshold
        forgotten = max(threshold - self.config.regression_margin, threshold / 2)
        if progress.status == "active" and rate >= threshold - ROUNDING:
            progress.status, progress.was_learnt = "graduated", True
            self._report("graduated", progress, step)
            self._unlock(step)
        elif progress.status == "graduated" and rate < forgotten - ROUNDING:
            progress.status = "active"
            self._report("regressed", progress, step)

    def _report(self, kind: Literal["unlocked", "graduated", "regressed"], progress: _Progress, step: int) -> None:
        self._events.append(CurriculumEvent(kind, progress.lesson.id, step, progress.rate))


def _results(successes: Sequence[bool] | float, n: int, most: int) -> list[float]:
    """Results as numbers from 0 to 1."""
    number = whole(n)
    if number is None or number < 0:
        raise OptionError(f"n={n!r}: give the number of results that a success rate stands for.")
    if isinstance(successes, int | float):
        results = [float(successes)] * min(n, most)
    else:
        results = [float(success) for success in successes]
    if not all(0 <= result <= 1 for result in results):
        raise OptionError(f"successes={successes!r:.200}: give True or False for each result, or a rate from 0 to 1.")
    return results


def _scaled(weights: Mapping[str, float], total: float) -> dict[str, float]:
    together = sum(weights.values())
    return {key: weight / together * total for key, weight in weights.items()}


def _restored(saved: Mapping[str, Any]) -> tuple[Status, bool, list[float]]:
    if saved["status"] not in STATUSES:
        raise ValueError(f"status {saved['status']!r}")
    return saved["status"], bool(saved["was_learnt"]), [float(result) for result in saved["results"]]
