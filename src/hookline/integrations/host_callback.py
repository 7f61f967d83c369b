"""`HostCallback`: the common base of callbacks that are passed to a framework's trainer.

A bridge of this kind is one object that the trainer calls. It owns a `HostLoop`, begins it, applies requests at the
boundary between two steps, saves there what was requested during a step, and ends it. What differs from host to host
is when the trainer calls, and how its model is written.

An error of the training reaches the run through ``with``, because few trainers report errors to their callbacks.
Without ``with`` the run ends as failed when the callback is next used, or when the program ends.
"""

import functools
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.defaults import NAME
from hookline._engine.errors import CheckpointError
from hookline._engine.state import ManifestRow
from hookline.integrations.host_loop import HostLoop, Requests
from hookline.loops import checkpoint
from hookline.loops.options import RunOptions

logger = logging.getLogger("hookline")


class HostCallback:
    """The run of a trainer that calls one object.

    Args:
        callbacks, name, options: As for every run of hookline.
        resume: The directory of a checkpoint that a callback saved. The next training continues its run with the
            callbacks' states. The framework is given the model in it by the user.

    Attributes:
        loop: The loop that callbacks receive, and the run: ``loop.dir``, ``loop.history``.
    """

    host = "The host"
    """The name of the framework, for messages."""
    package: str | None = None
    """The package that trains, if it does not report errors: a signal that arrives elsewhere is not for the run."""
    no_gradients: str | None = None
    no_validation_batches: str | None = None
    """Why the loop has no gradients, and no batches of validations, for the callbacks that warn."""
    reports_epochs = False
    """Whether the bridge begins and ends epochs; otherwise a training is one epoch."""

    def __init__(
        self,
        callbacks: Iterable[Any] = (),
        *,
        name: str = NAME,
        resume: str | Path | None = None,
        **options: Unpack[RunOptions],
    ) -> None:
        self.loop = HostLoop(name, native=None, save=self._save, callbacks=callbacks, **options)
        self.loop.cannot = self._cannot
        self.loop.package = self.package
        self.loop.no_gradients = self.no_gradients
        self.loop.no_validation_batches = self.no_validation_batches
        self._resume = None if resume is None else Path(resume)
        self._pending_checkpoints: list[Path] = []
        self._has_warned_of_validation = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._fail_if_running(error)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # scikit-learn's clone() copies the parameters of an estimator: the copies are of the same run

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that holds its callbacks must stay picklable, for files and for workers of a search. The run itself
        # is this process's: the copy fires nothing and records nothing.
        return _inert, (type(self),)

    def _begin(
        self,
        model: Any,
        *,
        native: Any = None,
        step: int = 0,
        num_steps: int | None = None,
        further_steps: int | None = None,
        epoch: int = 0,
        num_epochs: int | None = 1,
    ) -> None:
        """Begin the run of a training.

        Args:
            native: The framework's trainer, where that is not the model.
            step: How many steps the model has made; those of the checkpoint count where one is resumed.
            num_steps: How many it is to have made at the end, if the host reports it.
            further_steps: How many this training is to make, where the host reports that instead.
            epoch, num_epochs: The first epoch, and how many there are to be at the end.
        """
        loop = self.loop
        self._fail_if_running(None)
        self._pending_checkpoints, self._has_warned_of_validation = [], False
        state, row = self._resumed()
        loop.model, loop.native = model, model if native is None else native
        loop.begin(state=state, row=row)
        if state is not None:
            step = state["step"]
        if further_steps is not None:
            num_steps = step + further_steps
        loop.train_start(step=step, epoch=epoch, num_steps=num_steps, num_epochs=num_epochs)
        if not self.reports_epochs:
            loop.epoch_start(0)

    def _resumed(self) -> tuple[dict[str, Any] | None, ManifestRow | None]:
        """Return the state that this training resumes, and the row of its checkpoint."""
        resume, self._resume = self._resume, None
        if resume is None:
            return None, None
        state = checkpoint.load(resume)
        return state, self.loop.checkpoint_row(resume, step=state["step"])

    def _boundary(self) -> str | None:
        """Apply what callbacks requested, between two steps; returns the reason to stop, or None."""
        requests = self.loop.requests()
        if requests.validation:
            requests = self._with_validation(requests)
        refusal = self._cannot("checkpoint") if requests.checkpoint else None
        if refusal is not None:
            logger.warning("No checkpoint is saved at step %s. %s", self.loop.step, refusal)
        elif requests.checkpoint:
            paths, self._pending_checkpoints = self._pending_checkpoints or [self._default_path()], []
            for path in paths:
                self._save_now(path)
        return requests.stop

    def _with_validation(self, requests: Requests) -> Requests:
        """Validate on request, if the host can; returns the requests with those that callbacks made in the meantime."""
        refusal = self._cannot("validate")
        if refusal is None:
            self._validate_now()
            later = self.loop.requests()
            if later.validation:
                self.loop.request_validation()  # after the next step: this one has been evaluated
            return Requests(later.stop, requests.checkpoint or later.checkpoint, False)
        if not self._has_warned_of_validation:
            self._has_warned_of_validation = True
            logger.warning("A validation was requested. %s", refusal)
        return requests

    def _end(self) -> None:
        """End the training in an orderly way."""
        if not self.loop.is_running:
            return
        try:
            if not self.reports_epochs:
                self.loop.epoch_end()
            self.loop.train_end()
        except BaseException as error:  # of a critical callback, after the last call of the trainer
            self.loop.failed(error)
            raise

    def _fail_if_running(self, error: BaseException | None) -> None:
        self.loop.failed(error or RuntimeError(f"{self.host} did not finish the training: it raised an error"))

    def _cannot(self, command: str) -> str | None:
        """Return why the framework cannot apply a command, or None; most of these hosts validate by themselves."""
        return f"{self.host} evaluates by itself, and not on request." if command == "validate" else None

    def _validate_now(self) -> None:
        """Have the framework validate, where it can."""
        raise NotImplementedError

    def _write_model(self, directory: Path) -> None:
        """Write the model into the directory of a checkpoint."""
        raise NotImplementedError

    def _save(self, path: Path | None) -> ManifestRow:
        if (reason := self._cannot("checkpoint")) is not None:
            raise CheckpointError(reason)
        target = path or self._default_path()
        if self.loop.in_step or self.loop.is_validating:
            self._pending_checkpoints.append(target)
            self.loop.request_checkpoint()
            return self.loop.checkpoint_row(target)
        return self._save_now(target)

    def _save_now(self, path: Path) -> ManifestRow:
        state = self.loop.state_dict()
        if self.loop.rank == 0:
            checkpoint.save(path, state, self._write_model, step=self.loop.step)
        return self.loop.checkpoint_saved(path)

    def _default_path(self) -> Path:
        step, directory = self.loop.step + self.loop.in_step, self.loop.output_dir
        if directory is None:
            raise CheckpointError("Nothing is recorded (root=None): give save_checkpoint(path) a path.")
        return directory / "checkpoints" / f"step-{step:08d}"


def _inert(kind: type[HostCallback]) -> HostCallback:
    return kind(root=None, summary=False)


class WrappedMethods:
    """Methods of one object that are wrapped, until `restore`.

    Args:
        target: The object. Its class and other instances are left alone.
    """

    def __init__(self, target: Any) -> None:
        self._target = target
        self._previous: dict[str, Any] = {}
        self._wrappers: dict[str, Callable[..., Any]] = {}

    def wrap(self, name: str, around: Callable[..., Any]) -> None:
        """Have ``around(method, *args, **kwargs)`` called instead of a method."""
        method = getattr(self._target, name)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return around(method, *args, **kwargs) if self._wrappers.get(name) is call else method(*args, **kwargs)

        if name in vars(self._target):  # wrapped by others before
            self._previous[name] = method
        self._wrappers[name] = call
        setattr(self._target, name, call)

    def restore(self) -> None:
        """Restore the methods; one that was replaced since stays, and its wrapper passes calls on."""
        wrappers, self._wrappers = self._wrappers, {}
        for name, wrapper in wrappers.items():
            if vars(self._target).get(name) is wrapper:
                delattr(self._target, name)
                if name in self._previous:
                    setattr(self._target, name, self._previous[name])
        self._previous = {}


class StepMeans:
    """The means of values over the batches of a step, computed where the values are."""

    def __init__(self) -> None:
        self._values: dict[str, list[Any]] = {}

    def add(self, values: Mapping[str, Any]) -> None:
        """Add the values of a batch."""
        for name, value in values.items():
            self._values.setdefault(name, []).append(value.detach() if hasattr(value, "detach") else value)

    def take(self) -> dict[str, Any]:
        """Return the means since the last call."""
        values, self._values = self._values, {}
        return {name: each[0] if len(each) == 1 else sum(each) / len(each) for name, each in values.items()}


class LearningRateView:
    """A learning rate without an optimizer of torch, in ``param_groups``, where callbacks and commands find and set it.

    Args:
        read, write: Read it from the model, and set it for the steps that follow.
    """

    def __init__(self, read: Callable[[], float], write: Callable[[float], object]) -> None:
        self.param_groups: list[dict[str, Any]] = [RateGroup(read, write)]


class RateGroup(dict[str, Any]):
    """A group of parameters whose learning rate is read and written elsewhere."""

    def __init__(
        self, read: Callable[[], float], write: Callable[[float], object], parameters: Iterable[Any] = ()
    ) -> None:
        super().__init__(params=list(parameters), lr=read())
        self._read, self._write = read, write

    def __getitem__(self, name: str) -> Any:
        return self._read() if name == "lr" else super().__getitem__(name)

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        if name == "lr":
            self._write(value)
