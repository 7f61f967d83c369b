"""The outcomes of requests in every host."""

from hosts.base import BATCHES, STEPS
from hosts.differences import STEERING_DIFFERENCES, SteeringDifference
from hosts.scenarios import AT, Facts

EXPECTED: dict[str, Facts] = {
    "stop": {
        "step": AT,
        "recorded": ["stopped", "enough"],
        "last": "on_train_end",
        "validations": 0,
    },
    "checkpoint": {"saved": [AT], "there": [True]},
    "metric": {"rows": STEPS, "right": True},
    "error": {
        "raised": "ZeroDivisionError",
        "step": AT,
        "recorded": ["failed", "ZeroDivisionError: division by zero"],
        "last": "on_exception",
    },
    "resume": {
        "steps": [*range(BATCHES, STEPS)],
        "counted": STEPS,
        "begins": ["on_train_start", "on_checkpoint_load"],
        "in the same run": True,
    },
}
"""The outcome of each scenario."""


def expected(host: str, scenario: str) -> Facts:
    """Return the outcome in a host, with its differences."""
    return EXPECTED[scenario] | {each.fact: each.value for each in _known(host, scenario)}


def notes(host: str, scenario: str) -> list[str]:
    """Return why the outcome differs from that in other hosts."""
    return [each.reason for each in _known(host, scenario)]


def _known(host: str, scenario: str) -> list[SteeringDifference]:
    return [each for each in STEERING_DIFFERENCES if (each.host, each.scenario) == (host, scenario)]
