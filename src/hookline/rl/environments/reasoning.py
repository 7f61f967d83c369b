"""`Reasoning`: another environment's tasks, answered as ``<reasoning>..</reasoning><answer>..</answer>``.

The answer is the text between the last ``</answer>`` and the ``<answer>`` before it; without one, it is empty. The
wrapped environment scores the answer like a completion. The reward ``format`` requires exactly one block of each, in
this order, neither blank, with nothing but white space around them. The two are independent: an answer can be right in
a wrong format, and the reverse.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hookline._engine.errors import OptionError
from hookline.rl.environments.base import Faults, evaluation_tasks, make_environment, register_environment, succeeded
from hookline.rl.types import Task

FORMAT = "format"
TEMPLATE = "{prompt}\nAnswer in this form:\n<reasoning>...</reasoning><answer>...</answer>\n"
_INNER = "inner_prompt"
_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


@register_environment("reasoning")
class Reasoning:
    """Asks for reasoning before the answer.

    A task keeps the id of the wrapped task, so the same tasks are held out.

    Args:
        environment: The environment to wrap; an instance, or its name and settings.
        template: The prompt, in which ``{prompt}`` is replaced by the wrapped prompt.
        format_reward: The reward of a completion in the right format.
    """

    name = "reasoning"

    def __init__(self, environment: Any, *, template: str = TEMPLATE, format_reward: float = 0.5) -> None:
        self.environment = make_environment(environment)
        if isinstance(self.environment, Reasoning):
            raise OptionError("environment: it asks for reasoning already; give the environment that it wraps.")
        if template.count("{prompt}") != 1:
            raise OptionError(f"template={template!r}: give a text with {{prompt}} in it, once.")
        if isinstance(format_reward, bool) or not 0 <= format_reward < float("inf"):
            raise OptionError(f"format_reward={format_reward!r}: give a number of at least 0.")
        self.template = template
        self.format_reward = float(format_reward)
        own = getattr(self.environment, "faults", None)
        self.faults = own if isinstance(own, Faults) else Faults()

    @property
    def held_out_share(self) -> float | None:
        """The wrapped environment's share; 0 if it holds nothing out, None if it is unknown."""
        if not callable(getattr(self.environment, "held_out", None)):
            return 0
        return getattr(self.environment, "held_out_share", None)

    def sample(self, n: int, rng: random.Random) -> list[Task]:
        """Sample tasks of the wrapped environment, and ask for reasoning in their prompts."""
        return [self._wrapped(task) for task in self.environment.sample(n, rng)]

    def held_out(self, n: int, rng: random.Random) -> list[Task]:
        """Return tasks that the wrapped environment holds out."""
        if self.held_out_share == 0:
            raise OptionError(f"{self.name}: {self.environment.name} holds nothing out. Give an environment that does.")
        return [self._wrapped(task) for task in evaluation_tasks(self.environment, n, rng)]

    def score(self, task: Task, completion: str) -> dict[str, float]:
        """Return the wrapped environment's rewards for the answer, and one for the format.

        If the wrapped environment has a reward called ``format`` too, that one is prefixed with the environment's name.
        """
        inner = self.environment.score(self._unwrapped(task), answer_of(completion))
        rewards = {f"{self.environment.name}/{key}" if key == FORMAT else key: value for key, value in inner.items()}
        return rewards | {FORMAT: self.format_reward * follows_format(completion)}

    def succeeded(self, task: Task, rewards: Mapping[str, float]) -> bool:
        """Return whether the wrapped environment counts the answer as right; the format does not matter."""
        own = f"{self.environment.name}/{FORMAT}"
        inner = {FORMAT if key == own else key: value for key, value in rewards.items() if key != FORMAT}
        return succeeded(self.environment, self._unwrapped(task), inner)

    def _wrapped(self, task: Task) -> Task:
        prompt = self.template.replace("{prompt}", task.prompt)
        return replace(task, prompt=prompt, metadata={**task.metadata, _INNER: task.prompt})

    def _unwrapped(self, task: Task) -> Task:
        metadata = {key: value for key, value in task.metadata.items() if key != _INNER}
        return replace(task, prompt=task.metadata[_INNER], metadata=metadata)


def answer_of(completion: str) -> str:
    """Return the text of the last answer, or an empty string.

    >>> answer_of("<answer>3</answer> or rather <answer> 4 </answer>!")
    '4'
    """
    before, _, _ = completion.rpartition("</answer>")
    _, tag, answer = before.rpartition("<answer>")
    return answer.strip() if tag else ""


def follows_format(completion: str) -> bool:
    """Return whether a completion is one block of reasoning and then one answer, neither of them blank."""
    if any(completion.count(tag) != 1 for tag in _TAGS):
        return False
    reasoning, _, answer = (part.strip() for part in completion.partition("</reasoning>"))
    return (
        reasoning.startswith("<reasoning>")
        and answer.startswith("<answer>")
        and answer.endswith("</answer>")
        and bool(reasoning.removeprefix("<reasoning>").strip())
        and bool(answer_of(answer))
    )
