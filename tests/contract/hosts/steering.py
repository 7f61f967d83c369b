"""The outcomes of requests in every host."""

from typing import Any

from hosts import TABLE
from hosts.base import BATCHES, STEPS
from hosts.differences import STEERING_DIFFERENCES, SteeringDifference
from hosts.scenarios import AT, Facts

EXPECTED: dict[str, Facts] = {
    "stop": {
        "step": AT,
        "recorded": ["stopped", "enough"],
        "last": "on_train_end",
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


def usual(host: str, scenario: str) -> Facts:
    """Return the outcome in all hosts that train like this one."""
    evaluated = [step for step in TABLE[host].training.evaluated if step <= AT]
    return EXPECTED[scenario] | ({"validations": len(evaluated)} if scenario == "stop" else {})


def expected(host: str, scenario: str) -> Facts:
    """Return the outcome in a host, with its differences."""
    return usual(host, scenario) | {each.fact: each.value for each in _known(host, scenario)}


def found(host: str, scenario: str) -> dict[str, Any]:
    """Return what is known of a request in a host, as the matrix has it."""
    known = _known(host, scenario)
    reasons = list(dict.fromkeys(each.reason for each in known))
    return {"works": all(each.works for each in known), "notes": reasons}


def _known(host: str, scenario: str) -> list[SteeringDifference]:
    return [each for each in STEERING_DIFFERENCES if (each.host, each.scenario) == (host, scenario)]
