"""`Patch`: calls listeners in addition to the methods of another library's class.

`Sync` records these calls in a run. `AfterImport` calls a function when a module is imported.

- The methods keep their arguments, results and effects. An error of a listener is logged, not raised.
- No library is imported here: one that the program imports later is patched at that time.
- Removing the last listener restores the original methods. If someone else has patched them in the meantime,
  ours stays below theirs and only calls the original; if they restore it later, nothing is called twice.
"""

import functools
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, TracebackType
from typing import Any, Self

from hookline._engine.errors import OptionError
from hookline.loops.session import Session

logger = logging.getLogger("hookline")

Listener = Callable[[str, Any, tuple[Any, ...], dict[str, Any]], None]
"""Called with the name of a method, its object and its arguments, before the method."""


class ImportWatcher(ABC):
    """A finder that acts on some modules when they are imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._modules = tuple(modules)
        self._searching = threading.local()

    @abstractmethod
    def imported(self, module: ModuleType) -> None:
        """Called when one of the modules is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the modules with the other finders."""
        if name not in self._modules or getattr(self._searching, "active", False):
            return None
        self._searching.active = True
        try:
            spec = find_spec(name)
        finally:
            self._searching.active = False
        if spec is None or spec.loader is None:
            return None
        run_module = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_module(module)
            self.imported(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


class AfterImport(ImportWatcher):
    """Calls a function with a module when it is imported, or at once where it has been imported.

    An error of the function is logged, not raised, so the program's import succeeds in any case.

    Args:
        actions: The functions, by the name of the module.
    """

    def __init__(self, actions: Mapping[str, Callable[[ModuleType], object]]) -> None:
        super().__init__(tuple(actions))
        self._actions = dict(actions)

    def install(self) -> None:
        """Start watching imports."""
        for name in self._modules:
            if (module := sys.modules.get(name)) is not None:
                self.imported(module)
        sys.meta_path.insert(0, self)

    def imported(self, module: ModuleType) -> None:
        """Call the function of the module."""
        try:
            self._actions[module.__name__](module)
        except Exception:
            logger.exception("%s is not recorded.", module.__name__)


class Patch(ImportWatcher):
    """Methods of a class, in one or more modules.

    Args:
        modules: The modules that define the class.
        owner: The name of the class.
        methods: The names of its methods.
    """

    def __init__(self, modules: Sequence[str], owner: str, methods: Sequence[str]) -> None:
        super().__init__(modules)
        self._owner, self._methods = owner, tuple(methods)
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._listeners: tuple[Listener, ...] = ()
        self._patched: dict[tuple[str, str], tuple[Callable[..., Any], Callable[..., Any]]] = {}

    def add(self, listener: Listener) -> None:
        """Call a listener from now on."""
        with self._lock:
            self._listeners = (*self._listeners, listener)
            if len(self._listeners) == 1:
                for name in self._modules:
                    if (module := sys.modules.get(name)) is not None:
                        self._install(module)
                sys.meta_path.insert(0, self)

    def remove(self, listener: Listener) -> None:
        """Stop calling a listener."""
        with self._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)
            if not self._listeners and self in sys.meta_path:
                sys.meta_path.remove(self)
                self._uninstall()

    def imported(self, module: ModuleType) -> None:
        """Patch a module that was loaded."""
        with self._lock:
            if self._listeners:
                self._install(module)

    def _install(self, module: ModuleType) -> None:
        owner: Any = getattr(module, self._owner, None)
        for method in self._methods:
            place = module.__name__, method
            original = getattr(owner, method, None)
            # None: the module is still being imported, or is another version. Known: our patch is below someone else's.
            if original is not None and place not in self._patched:
                ours = self._wrapped(method, original)
                setattr(owner, method, ours)
                self._patched[place] = ours, original

    def _uninstall(self) -> None:
        for (name, method), (ours, original) in list(self._patched.items()):
            owner = getattr(sys.modules[name], self._owner)
            if owner.__dict__.get(method) is ours:
                setattr(owner, method, original)
                del self._patched[name, method]

    def _wrapped(self, method: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def patched(owner: Any, *args: Any, **kwargs: Any) -> Any:
            # Someone may have saved our method and restored it below a later patch of ours: only the outer one counts.
            if not self._listeners or getattr(self._inside, "active", False):
                return original(owner, *args, **kwargs)
            self._inside.active = True
            try:
                self._notify(method, owner, args, kwargs)
                return original(owner, *args, **kwargs)
            finally:
                self._inside.active = False

        return patched

    def _notify(self, method: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for listener in self._listeners:
            try:
                listener(method, owner, args, kwargs)
            except Exception:
                logger.exception("%s.%s is not recorded.", self._owner, method)


class Sync:
    """Records the calls of another library in a run, until it is stopped. Also a context manager.

    A subclass defines `record_call`.

    Args:
        run: A run that has begun.
        patch: The methods whose calls are recorded.

    Raises:
        OptionError: The run has not begun.
    """

    def __init__(self, run: Session, patch: Patch) -> None:
        if not isinstance(run, Session) or run.state == "created":
            raise OptionError(f"sync({run!r:.100}): give a run that has begun, e.g. sync(hl.start('mine')).")
        self.run = run
        self._patch, self._is_active = patch, True
        self._lock = threading.RLock()
        patch.add(self.record_call)

    def stop(self) -> None:
        """Stop recording; recorded values are kept. May be called more than once."""
        with self._lock:
            if self._is_active:
                self._is_active = False
                self._patch.remove(self.record_call)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def record_call(self, method: str, owner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Record a call; called before the method."""
        raise NotImplementedError
