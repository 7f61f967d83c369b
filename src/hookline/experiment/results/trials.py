"""`SearchResult`: the trials of a search, and the best of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline._engine.errors import OptionError
from hookline._record.terminal import plural


@dataclass(frozen=True, slots=True)
class Trial:
    """One trial of a search.

    Attributes:
        number: Its 0-based number.
        arm: The arm that it trained.
        parameters: The values that were chosen for it, by the paths of the settings.
        state: ``complete``, ``pruned``, ``failed``, or ``running`` if it was interrupted and will be resumed.
        values: Its value of each metric of the search; empty unless it is complete.
        steps: The values that were reported during its training, by completed steps; it may have been pruned by them.
    """

    number: int
    arm: str
    parameters: Mapping[str, Any]
    state: str
    values: tuple[float, ...] = ()
    steps: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The trials of a search, in the order in which they began.

    Attributes:
        metrics: The metrics that it optimizes.
        modes: Whether smaller (``min``) or larger (``max``) values of each are better.
    """

    metrics: tuple[str, ...]
    modes: tuple[str, ...]
    trials: Sequence[Trial] = ()

    def __str__(self) -> str:
        """The number of trials by state, and the best one with its parameters."""
        states = Counter(trial.state for trial in self.trials)
        counts = ", ".join(f"{count:,} {state}" for state, count in states.items())
        text = f"{plural(len(self.trials), 'trial')} ({counts})" if counts else "no trials"
        best = self.best_trials
        if not best:
            return text
        chosen = ", ".join(f"{name}={_short(value)}" for name, value in best[0].parameters.items())
        if len(self.metrics) > 1:
            return f"{text}; {plural(len(best), 'trial')} that no other surpasses in all metrics"
        return f"{text}; best: {best[0].arm} with {chosen}"

    @property
    def best_trial(self) -> Trial | None:
        """The complete trial with the best value; None if there is none.

        Raises:
            OptionError: The search has several metrics.
        """
        if len(self.metrics) > 1:
            raise OptionError(
                f"best_trial: the search optimizes {', '.join(self.metrics)}, and no trial need be the best in all of "
                "them. Read best_trials."
            )
        return next(iter(self.best_trials), None)

    @property
    def best_trials(self) -> list[Trial]:
        """The complete trials that no other one surpasses in all metrics, best first by the first metric."""
        complete = [trial for trial in self.trials if trial.state == "complete"]
        best = [trial for trial in complete if not any(self._dominates(other, trial) for other in complete)]
        return sorted(best, key=lambda trial: self._costs(trial)[0])

    def _costs(self, trial: Trial) -> list[float]:
        return [value if mode == "min" else -value for value, mode in zip(trial.values, self.modes, strict=True)]

    def _dominates(self, one: Trial, other: Trial) -> bool:
        pairs = list(zip(self._costs(one), self._costs(other), strict=True))
        return all(mine <= theirs for mine, theirs in pairs) and any(mine < theirs for mine, theirs in pairs)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value!s:.60}"
