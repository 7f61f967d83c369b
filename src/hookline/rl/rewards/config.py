"""`RewardConfig`: which reward functions of the library score, what they give and what they count for.

From Python, or from a YAML, TOML or JSON file:

    correctness: {weight: 1.0, reward: 2.0}
    anti_repetition: {penalty: 0.5, threshold: 0.2}
    integer: {weight: 0}        # left out
    length: {minimum: 20}       # not there by default: naming it puts it in
    on_error: skip

A module of constants in capitals, as training scripts have them, is read by `RewardConfig.from_constants`:
``CORRECTNESS_REWARD`` is ``correctness.reward``, ``ANTI_REPETITION_PENALTY`` is ``anti_repetition.penalty``,
``TOPIC_RELEVANCE_THRESHOLD`` is ``topic_relevance.threshold``, ``INT_WEIGHT`` is ``integer.weight``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from hookline._engine.errors import ConfigError, closest
from hookline.config.structs import CheckedStruct, to_struct
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
from hookline.rl.rewards.logged import LoggedReward, wrap
from hookline.rl.rewards.scoring import OnError

_KINDS = {
    kind.reward_name: kind
    for kind in (XMLCount, SoftFormat, StrictFormat, Integer, Correctness, AntiRepetition, TopicRelevance, Length)
}


class RewardConfig(CheckedStruct, kw_only=True):
    """The settings of reward functions; one that is None, or has a weight of 0, is left out.

    Args:
        xmlcount: For each of the four tags that stands exactly once.
        soft_format: For a reasoning directly followed by an answer, anywhere.
        strict_format: For one reasoning and one answer, each tag on a line of its own, and nothing else.
        integer: For an answer that is a whole number.
        correctness: For the right answer.
        anti_repetition: Costs something for runs of words that stood before.
        topic_relevance: For key words of the question.
        length: For the right length; left out by default.
        on_error: "raise", or "skip" to go on without the rewards of a function that fails.
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
        for name, kind in _KINDS.items():
            given = getattr(self, name)
            if isinstance(given, Mapping):
                setattr(self, name, to_struct(given, kind, source=f"RewardConfig({name}=...)"))
        super().__post_init__()

    @classmethod
    def from_file(cls, path: str | Path, overrides: Sequence[str] = ()) -> Self:
        """The settings in a YAML, TOML or JSON file, with overrides such as ``"correctness.reward=1"`` on top."""
        from hookline.config.overrides import load_config

        return load_config(path, cls, overrides)

    from_yaml = from_file

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The settings in a mapping, as a part of a larger configuration has them."""
        return to_struct(values, cls, source="rewards")

    @classmethod
    def from_constants(cls, constants: Any) -> Self:
        """The settings in a module, or a mapping, of constants in capitals; other names are passed over.

        Raises:
            ConfigError: A constant ends like a setting of a reward function but belongs to none.
        """
        given = constants if isinstance(constants, Mapping) else vars(constants)
        known = {
            f"{stem}_{field}".upper(): (name, field)
            for name, kind in _KINDS.items()
            for stem in (name, kind.__dict__["__name__"].removesuffix("_reward_func"))
            for field in kind.__struct_fields__
        }
        values: dict[str, dict[str, Any]] = {}
        for constant in filter(str.isupper, given):
            if constant in known:
                name, field = known[constant]
                values.setdefault(name, {})[field] = given[constant]
            elif constant.endswith(("_REWARD", "_WEIGHT", "_THRESHOLD", "_PENALTY")):
                raise ConfigError(f"{constant} is no setting of a reward function. {closest(constant, known)}")
        return cls.from_dict(values)

    def functions(self, *, recorder: Any = None) -> list[LoggedReward]:
        """The reward functions, logged: for ``GRPOTrainer(reward_funcs=...)`` or an environment.

        Args:
            recorder: Where they record to; see `record_to` otherwise.
        """
        chosen = {each.reward_name: each for each in self._chosen()}
        column = None if self.correctness is None else self.correctness.column
        return wrap(chosen, recorder=recorder, weights=self.weights(), on_error=self.on_error, expected=column)

    def weights(self) -> list[float]:
        """What each of the functions counts for: ``GRPOConfig(reward_weights=...)``."""
        return [each.weight for each in self._chosen()]

    def _chosen(self) -> list[Any]:
        given = [getattr(self, name) for name in _KINDS]
        return [each for each in given if each is not None and each.weight != 0]
