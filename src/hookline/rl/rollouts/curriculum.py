"""`Curriculum`: chooses the next lesson from the latest results of each.

A lesson is ``locked`` until all lessons it depends on have graduated once, then ``active``, and ``graduated`` when its
success rate reaches its threshold. A graduated lesson becomes active again if its rate falls below its threshold by
more than the margin, or below half of the threshold; lessons that depend on it stay unlocked. The rate is the mean of
the latest results (the window), and is used only if there are enough of them.

Active lessons are drawn more often the closer their success rate is to one half, where there is most to learn; none
has less than a tenth of the largest weight. Graduated lessons share a small part of the draws, so that regressions are
noticed. Each draw takes one number from the generator.
"""

import logging
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from hookline._engine.checks import require_integer
from hookline._engine.errors import CheckpointError, OptionError, UnknownNameError, closest
from hookline.rl.rollouts.config import CurriculumConfig, Lesson

logger = logging.getLogger("hookline")

Status = Literal["locked", "active", "graduated"]
MIN_WEIGHT = 0.1
ROUNDING = 1e-9
"""The tolerance of comparisons with a threshold: 0.95 - 0.1 is not exactly 0.85."""


@dataclass(frozen=True, slots=True)
class CurriculumEvent:
    """A lesson was unlocked, graduated or regressed.

    Attributes:
        step: The step of the results that caused it.
        success_rate: The lesson's success rate at that time; None if it has no results yet.
    """

    kind: Literal["unlocked", "graduated", "regressed"]
    lesson: str
    step: int
    success_rate: float | None


@dataclass(slots=True)
class _Progress:
    lesson: Lesson
    results: deque[float]
    status: Status = "locked"
    has_graduated: bool = False

    @property
    def rate(self) -> float | None:
        return math.fsum(self.results) / len(self.results) if self.results else None

    @property
    def weight(self) -> float:
        """The variance of a result, scaled to 1 at a rate of one half; with few results the rate is close to that."""
        success = (sum(self.results) + 1) / (len(self.results) + 2)
        return max(MIN_WEIGHT, 4 * success * (1 - success))


class Curriculum:
    """Draws lessons, and tracks their results.

    Args:
        config: Its lessons and settings, as a `CurriculumConfig` or a mapping of its arguments.
        seed: The seed of draws without a generator.
    """

    def __init__(self, config: CurriculumConfig | Mapping[str, Any], seed: int = 0) -> None:
        self.config = config if isinstance(config, CurriculumConfig) else CurriculumConfig(**config)
        self.seed = seed
        self._draws = 0
        self._events: list[CurriculumEvent] = []
        window = self.config.window
        self._progress = {lesson.id: _Progress(lesson, deque(maxlen=window)) for lesson in self.config.lessons}
        self._unlock()

    @property
    def lessons(self) -> list[Lesson]:
        """All lessons, in the given order."""
        return [progress.lesson for progress in self._progress.values()]

    @property
    def locked(self) -> list[str]:
        """The ids of lessons that wait for others."""
        return self._ids("locked")

    @property
    def active(self) -> list[str]:
        """The ids of lessons that are being learnt."""
        return self._ids("active")

    @property
    def graduated(self) -> list[str]:
        """The ids of lessons that have been learnt."""
        return self._ids("graduated")

    def lesson(self, lesson_id: str) -> Lesson:
        """Return the lesson with an id."""
        return self._find(lesson_id).lesson

    def states(self) -> dict[str, Status]:
        """Return the status of each lesson by its id."""
        return {key: progress.status for key, progress in self._progress.items()}

    def success_rate(self, lesson_id: str) -> float | None:
        """Return the mean of a lesson's latest results; None if there are none."""
        return self._find(lesson_id).rate

    def probabilities(self) -> dict[str, float]:
        """Return the probability of each lesson to be drawn next, without locked lessons."""
        review = self.config.review_share if self.active and self.graduated else float(bool(self.graduated))
        probabilities: dict[str, float] = {}
        for ids, share in ((self.active, 1 - review), (self.graduated, review)):
            total = sum(self._progress[key].weight for key in ids)
            probabilities |= {key: self._progress[key].weight / total * share for key in ids}
        return probabilities

    def metrics(self) -> dict[str, float]:
        """Return the probability of each lesson to be drawn next, and the success rate of those with results."""
        probabilities = self.probabilities()
        values = {f"curriculum/{key}/probability": probabilities.get(key, 0.0) for key in self._progress}
        rates = {f"curriculum/{key}/success_rate": each.rate for key, each in self._progress.items()}
        return values | {name: rate for name, rate in rates.items() if rate is not None}

    def sample_lesson(self, rng: random.Random | None = None) -> Lesson:
        """Draw the next lesson; without a generator, from the seed and the number of draws so far."""
        if rng is None:
            rng = random.Random(f"{self.seed}:{self._draws}")  # noqa: S311 - sampling, not secrets
            self._draws += 1
        probabilities = self.probabilities()
        (drawn,) = rng.choices(list(probabilities), list(probabilities.values()))
        return self._progress[drawn].lesson

    def record(self, lesson_id: str, successes: Sequence[bool] | float, step: int, *, n: int = 1) -> None:
        """Record results, and unlock lessons, or change the status of this one, accordingly.

        Results of a locked lesson are kept, and count once it is unlocked.

        Args:
            successes: Whether each task was solved; or a success rate, which stands for ``n`` results.
        """
        progress = self._find(lesson_id)
        require_integer("n", n, minimum=0)
        if isinstance(successes, int | float):
            results = [float(successes)] * min(n, self.config.window)
        else:
            results = [float(success) for success in successes]
        if not all(0 <= result <= 1 for result in results):
            raise OptionError(
                f"successes={successes!r:.200}: give True or False for each result, or a rate from 0 to 1."
            )
        progress.results.extend(results)
        self._update_status(progress, step)

    def take_events(self) -> list[CurriculumEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def state_dict(self) -> dict[str, Any]:
        """Return the state for `load_state_dict`, which can be stored as JSON."""
        lessons = {
            key: {"status": each.status, "was_learnt": each.has_graduated, "results": list(each.results)}
            for key, each in self._progress.items()
        }
        return {"lessons": lessons, "draws": self._draws, "events": [asdict(event) for event in self._events]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a saved state.

        Lessons that are not in the state start from scratch; saved lessons that the curriculum no longer has are
        ignored with a warning.

        Raises:
            CheckpointError: This is not the state of a curriculum; nothing is changed.
        """
        try:
            events = [CurriculumEvent(**event) for event in state["events"]]
            saved = {key: _restored(each) for key, each in state["lessons"].items()}
            draws = int(state["draws"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{state!r:.200} is not the state of a curriculum ({error!r}).") from error
        if unknown := sorted(set(saved) - set(self._progress)):
            logger.warning("Curriculum: ignoring the saved lessons %s, which are not in the curriculum.", unknown)
        for key, progress in self._progress.items():
            status, has_graduated, results = saved.get(key, ("locked", False, []))
            progress.status, progress.has_graduated = status, has_graduated
            progress.results = deque(results, maxlen=self.config.window)
        self._draws, self._events = draws, events
        self._unlock()

    def _find(self, lesson_id: str) -> _Progress:
        if lesson_id not in self._progress:
            raise UnknownNameError(f"There is no lesson {lesson_id!r}. {closest(str(lesson_id), self._progress)}")
        return self._progress[lesson_id]

    def _ids(self, status: Status) -> list[str]:
        return [key for key, progress in self._progress.items() if progress.status == status]

    def _unlock(self) -> list[_Progress]:
        """Activate the lessons whose dependencies have all graduated, and return them."""
        unlocked = [
            each
            for each in self._progress.values()
            if each.status == "locked" and all(self._progress[key].has_graduated for key in each.lesson.depends_on)
        ]
        for each in unlocked:
            each.status = "active"
        return unlocked

    def _update_status(self, progress: _Progress, step: int) -> None:
        """Update a lesson's status from its results, and then those of the lessons that it unlocks."""
        if progress.status == "locked" or len(progress.results) < self.config.min_results:
            return
        rate = progress.rate or 0.0
        threshold = progress.lesson.threshold
        regression = max(threshold - self.config.regression_margin, threshold / 2)
        if progress.status == "active" and rate >= threshold - ROUNDING:
            progress.status, progress.has_graduated = "graduated", True
            self._add_event("graduated", progress, step)
            unlocked = self._unlock()
            for each in unlocked:
                self._add_event("unlocked", each, step)
            for each in unlocked:  # results may have been recorded while it was locked
                self._update_status(each, step)
        elif progress.status == "graduated" and rate < regression - ROUNDING:
            progress.status = "active"
            self._add_event("regressed", progress, step)

    def _add_event(self, kind: Literal["unlocked", "graduated", "regressed"], progress: _Progress, step: int) -> None:
        self._events.append(CurriculumEvent(kind, progress.lesson.id, step, progress.rate))


def _restored(saved: Mapping[str, Any]) -> tuple[Status, bool, list[float]]:
    if saved["status"] not in get_args(Status):
        raise ValueError(f"status {saved['status']!r}")
    return saved["status"], bool(saved["was_learnt"]), [float(result) for result in saved["results"]]
