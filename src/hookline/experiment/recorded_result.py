"""`RecordedResult`: what a run of an experiment came to, as its journal says it.

It is the last thing that a run records before it says how it ended. So it is known wherever the journal is: on a server
that received it, and where the process that wrote results down was killed. ``result.json`` beside the journal says the
same, and also what became of the run afterwards.
"""

from pathlib import Path
from typing import Any

import msgspec

from hookline.core.state import EvalResult, RunResult
from hookline.record.records import finite_back


class RecordedResult(msgspec.Struct):
    """The fields of a `RunResult` that nothing else in the journal says."""

    metrics: dict[str, Any] = {}
    evals: list[EvalResult] = []
    failed_evals: dict[str, str] = {}
    returned: list[str] = []
    seconds: float = 0.0
    attempts: int = 1

    @classmethod
    def data_of(cls, result: RunResult) -> dict[str, Any]:
        """A result as the data of an event."""
        data: dict[str, Any] = {name: getattr(result, name) for name in cls.__struct_fields__}
        return data | {"evals": [msgspec.to_builtins(each) for each in result.evals]}

    @classmethod
    def read(cls, data: Any) -> "RecordedResult":
        """What the data of an event says.

        Raises:
            msgspec.ValidationError: It is not what a run records.
        """
        return msgspec.convert(_finite_back(data), cls)

    @property
    def status(self) -> str:
        """The status of a run that was trained and recorded this."""
        return "incomplete" if self.failed_evals else "completed"

    def result(self, key: str, status: str, directory: Path, **about: Any) -> RunResult:
        """The result of the run that lies in a directory."""
        evals = tuple(EvalResult(e.name, e.metrics, e.breakdowns, tuple(e.tags), e.intervals) for e in self.evals)
        return RunResult(
            run_key=key,
            status=status,
            metrics=self.metrics,
            evals=evals,
            seconds=self.seconds,
            failed_evals=self.failed_evals,
            attempts=self.attempts,
            returned=tuple(self.returned),
            output_dir=directory,
            **about,
        )


def _finite_back(value: Any) -> Any:
    """A value with the floats that JSON has no number for, wherever they stand."""
    if isinstance(value, dict):
        return {name: _finite_back(item) for name, item in value.items()}
    return [_finite_back(item) for item in value] if isinstance(value, list) else finite_back(value)
