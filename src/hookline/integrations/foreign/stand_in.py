"""`StandIn`: what a foreign callback is given in the place of an object of its framework.

It has what a hookline loop can truly answer. Everything else that is read, set or copied is a `NotOfferedError`, which
names the framework, the callback, the event and the attribute, and says what there is instead. It is an
`AttributeError`: a callback that asks ``hasattr`` first is answered False.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from hookline.core.errors import NotOfferedError, closest

if TYPE_CHECKING:
    from hookline.integrations.foreign.bridge import ForeignCallback


_NOT_THERE = "a hookline loop does not have that"


class StandIn:
    """Answers for an object of another framework as far as a hookline loop knows; see the module.

    Args:
        bridge: The wrapper of the callback that asks.
        path: What the callback calls this object, e.g. ``trainer.strategy``.
    """

    hints: ClassVar[Mapping[str, str]] = {}
    """What to do instead, by the name of what is not there."""

    def __init__(self, bridge: "ForeignCallback", loop: Any, path: str) -> None:
        vars(self).update(_bridge=bridge, _loop=loop, _path=path)

    def __getattr__(self, name: str) -> Any:
        if name in ("_bridge", "_loop", "_path"):  # one that was never built, as while it is unpickled
            raise AttributeError(name)
        there = getattr(type(self), name, None)
        if isinstance(there, property) and there.fget is not None:
            return there.fget(self)  # it raised an AttributeError, which brought us here: that one says more
        raise self._not_offered(f"for {self._path}.{name}", name)

    def __setattr__(self, name: str, value: Any) -> None:
        there = getattr(type(self), name, None)
        if not isinstance(there, property) or there.fset is None:
            raise self._not_offered(f"to set {self._path}.{name}", name)
        there.fset(self, value)

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise self._not_offered(f"for a copy of {self._path}", "copy")

    def __repr__(self) -> str:
        return f"<hookline's {self._path} for {self._bridge.who}>"

    def _not_offered(self, asked: str, name: str, *, why: str = _NOT_THERE) -> NotOfferedError:
        instead = self.hints.get(name) or f"{self._path}: {closest(name, self._offered())}"
        return not_offered(self._bridge, asked, instead, why=why)

    def _offered(self) -> list[str]:
        """What callbacks may ask it for."""
        names = {name for owner in type(self).__mro__[:-1] for name in vars(owner)} | vars(self).keys()
        return [name for name in names - {"hints"} if not name.startswith("_")]


def not_offered(bridge: "ForeignCallback", asked: str, instead: str, *, why: str = _NOT_THERE) -> NotOfferedError:
    """The error of a callback that asks ``for`` something, or ``to`` do it."""
    where = f" in {bridge.event}()" if bridge.event else ""
    return NotOfferedError(f"{bridge.who}{where} asks {asked}: {why}. {instead}")
