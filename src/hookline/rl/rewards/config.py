"""`RewardConfig`: selects reward functions of the library, with their settings and weights.

From Python, or from a YAML, TOML or JSON file:

    correctness: {weight: 1.0, reward: 2.0}
    anti_repetition: {penalty: 0.5, threshold: 0.2}
    integer: {weight: 0}        # left out
    length: {minimum: 20}       # not included by default
    on_error: skip

`RewardConfig.from_constants` reads a module of constants in capitals, as many training scripts have:
``CORRECTNESS_REWARD`` is ``correctness.reward``, ``ANTI_REPETITION_PENALTY`` is ``anti_repetition.penalty``,
``TOPIC_RELEVANCE_THRESHOLD`` is ``topic_relevance.threshold``, ``INT_WEIGHT`` is ``integer.weight``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from hookline._engine.errors import ConfigError, closest
from hookline.config.loading import CheckedStruct, to_struct
from hookline.rl.rewards.library import (
    AntiRepetition,
    Correctness,
    Integer,
    Length,
    SoftFormat,
    StrictFormat,
    TopicRelevance,
    XMLCount,
)
from hookline.rl.rewards.logged import LoggedReward, OnError, wrap

_CLASSES = {
    each.reward_name: each
    for each in (XMLCount, SoftFormat, StrictFormat, Integer, Correctness, AntiRepetition, TopicRelevance, Length)
}


class RewardConfig(CheckedStruct, kw_only=True):
    """The settings of reward functions; a function that is None or has a weight of 0 is left out.

    Args:
        xmlcount: Rewards each of the four tags that occurs exactly once.
        soft_format: Rewards a reasoning directly followed by an answer, anywhere.
        strict_format: Rewards one reasoning and one answer, each tag on its own line, and nothing else.
        integer: Rewards an answer that is a whole number.
        correctness: Rewards the right answer.
        anti_repetition: Penalizes repeated runs of words.
        topic_relevance: Rewards key words of the question.
        length: Rewards the right length; left out by default.
        on_error: "raise", or "skip" to continue without the rewards of a function that fails.
    """

    xmlcount: XMLCount | None = msgspec.field(default_factory=XMLCount)
    soft_format: SoftFormat | None = msgspec.field(default_factory=SoftFormat)
    strict_format: StrictFormat | None = msgspec.field(default_factory=StrictFormat)
    integer: Integer | None = msgspec.field(default_factory=Integer)
    correctness: Correctness | None = msgspec.field(default_factory=Correctness)
    anti_repetition: AntiRepetition | None = msgspec.field(default_factory=AntiRepetition)
    topic_relevance: TopicRelevance | None = msgspec.field(default_factory=TopicRelevance)
    length: Length | None = None
    on_error: OnError = "raise"

    def __post_init__(self) -> None:
        for name, reward_class in _CLASSES.items():
            given = getattr(self, name)
            if isinstance(given, Mapping):
                setattr(self, name, to_struct(given, reward_class, source=f"RewardConfig({name}=...)"))
        super().__post_init__()

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """Load the settings from a YAML, TOML or JSON file, with overrides such as ``"correctness.reward=1"``."""
        from hookline.config.loading import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the settings from a mapping, such as a section of a larger configuration."""
        return to_struct(values, cls, source="rewards")

    @classmethod
    def from_constants(cls, constants: Any) -> Self:
        """Read the settings from a module, or a mapping, of constants in capitals; other names are ignored.

        Raises:
            ConfigError: A constant ends like a setting of a reward function but is none.
        """
        given = constants if isinstance(constants, Mapping) else vars(constants)
        known = {
            f"{stem}_{field}".upper(): (name, field)
            for name, reward_class in _CLASSES.items()
            for stem in (name, reward_class.__dict__["__name__"].removesuffix("_reward_func"))
            for field in reward_class.__struct_fields__
        }
        values: dict[str, dict[str, Any]] = {}
        for constant in filter(str.isupper, given):
            if constant in known:
                name, field = known[constant]
                values.setdefault(name, {})[field] = given[constant]
            elif constant.endswith(("_REWARD", "_WEIGHT", "_THRESHOLD", "_PENALTY")):
                raise ConfigError(f"{constant} is not a setting of a reward function. {closest(constant, known)}")
        return cls.from_dict(values)

    def functions(self, *, recorder: Any = None) -> list[LoggedReward]:
        """Return the logged reward functions, for ``GRPOTrainer(reward_funcs=...)`` or an environment.

        Args:
            recorder: Where they record; by default the destination of `record_to`.
        """
        selected = {each.reward_name: each for each in self._selected()}
        column = None if self.correctness is None else self.correctness.column
        return wrap(selected, recorder=recorder, weights=self.weights(), on_error=self.on_error, expected=column)

    def weights(self) -> list[float]:
        """Return the weight of each function, for ``GRPOConfig(reward_weights=...)``."""
        return [each.weight for each in self._selected()]

    def _selected(self) -> list[Any]:
        configured = [getattr(self, name) for name in _CLASSES]
        return [each for each in configured if each is not None and each.weight != 0]
