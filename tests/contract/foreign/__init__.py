"""A case for each kind of foreign environment: the same game, through the interface of its project."""

from foreign.base import Case
from foreign.gymnasium_game import GymnasiumCase
from foreign.openenv_game import OpenEnvCase
from foreign.tinker_game import TinkerCase
from foreign.trl_game import RewardsCase, ToolsCase
from foreign.verifiers_game import VerifiersCase, VerifiersToolsCase

CASES: list[type[Case]] = [
    GymnasiumCase,
    OpenEnvCase,
    RewardsCase,
    TinkerCase,
    ToolsCase,
    VerifiersCase,
    VerifiersToolsCase,
]

__all__ = ["CASES", "Case"]
