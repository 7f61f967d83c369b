"""Test helpers for callbacks and hooks: a recording callback, a fake loop, a contract check, a tiny language model.

>>> class Greeter(Callback):
...     def on_train_start(self, loop): loop.log(greeted=1)
>>> loop = FakeLoop(callbacks=[Greeter()])
>>> loop.callbacks.on_train_start(loop)
>>> loop.get_metric("greeted")
1
"""

import copy
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import CheckpointError
from hookline._engine.hooks import Hook
from hookline._engine.metrics import MetricsRow, collect
from hookline._engine.moments import MOMENTS, Callback, Moment
from hookline._engine.state import ArmResult, EvalResult, LoopArtifacts, ManifestRow, RunResult
from hookline._engine.state_encoding import decode, encode
from hookline._record.commands import new_command
from hookline._record.device import defer
from hookline.loops.loop import Loop
from hookline.loops.tiny_model import character_tokenizer, chat_tokenizer, tiny_causal_lm

__all__ = [
    "Event",
    "FakeLoop",
    "RecordingCallback",
    "character_tokenizer",
    "chat_tokenizer",
    "check_callback",
    "fire_everything",
    "tiny_causal_lm",
]


class Event(NamedTuple):
    """One moment that fired, with its arguments except the first."""

    moment: str
    arguments: tuple[Any, ...] = ()


class RecordingCallback(Callback):
    """Records the moments that fire and their arguments."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def names(self) -> list[str]:
        """Return the moments that fired, in order."""
        return [event.moment for event in self.events]

    def clear(self) -> None:
        """Forget all events."""
        self.events.clear()


def _recording(moment: Moment) -> Callable[..., None]:
    def record(self: RecordingCallback, subject: Any, *arguments: Any, **keywords: Any) -> None:
        values = [*arguments, *(keywords[name] for name in moment.keywords if name in keywords)]
        self.events.append(Event(moment.name, tuple(dict(v) if isinstance(v, dict) else v for v in values)))

    return record


for _moment in MOMENTS.values():
    setattr(RecordingCallback, _moment.name, _recording(_moment))


class FakeLoop(Loop):
    """A loop without training: fire its moments through ``loop.callbacks``.

    Exceptions of subscribers propagate, unless it is given a `CallbackCollection` that isolates them. Checkpoints are
    rows in ``checkpoints`` and write nothing. Logged metrics are in ``metrics`` (the latest), ``history`` (rows) and
    ``logged_metrics``; of media, ``media`` has the step, the name and the type of each: ``(3, "samples", "image")``.
    """

    def __init__(
        self,
        *,
        step: int = 0,
        num_steps: int | None = 10,
        callbacks: Iterable[Any] = (),
        strict: bool | None = None,
        **facts: Any,
    ) -> None:
        own = isinstance(callbacks, CallbackCollection)
        super().__init__(callbacks, strict=not own if strict is None else strict)
        self.step = step
        self.num_steps = num_steps
        self.num_epochs = 1
        self.notes = ""
        self.media: list[tuple[int, str, str]] = []
        for name, value in facts.items():
            setattr(self, name, value)

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """Another name for `metrics`."""
        return self.metrics

    def save_checkpoint(self, path: Any = None) -> ManifestRow:
        """Add a row to ``checkpoints`` and fire `on_checkpoint`."""
        row = ManifestRow(step=self.step, path=Path(path or f"step-{self.step:08d}"), metrics=dict(self.metrics))
        self.checkpoints.append(row)
        self.callbacks.on_checkpoint(self, row)
        return row

    def _record_media(self, step: int, metrics: dict[str, Any], axis: str | None) -> None:
        taken = metrics.take_media() if isinstance(metrics, MetricsRow) else {}
        self.media += [(step, name, value.type) for name, values in taken.items() for value in values]

    def run_steps(self, n: int, metrics: Callable[[int], Mapping[str, Any]] = lambda step_idx: {}) -> None:
        """Complete up to ``n`` steps, firing step and log moments, until a stop is requested."""
        for _ in range(n):
            if self.stop_requested:
                return
            try:
                row = self.lifecycle.begin()
                self.callbacks.on_train_batch_start(self, None, self.step)
                values = collect((dict(metrics(self.step)),), {}, defer)
                row.update(values)
                self.metrics.update(values)
                self.callbacks.on_train_batch_end(self, row, None, self.step)
                self.lifecycle.end(None)
            finally:  # also after an exception of a subscriber, so that a test can continue
                self.lifecycle.abandon()


def fire_everything(callback: Any, *, metrics: Mapping[str, Any] | None = None, **facts: Any) -> FakeLoop:
    """Fire every moment of an experiment with one run for a callback or hook, and return the loop.

    The run has four steps, a validation, a benchmark and a temporary directory. Exceptions propagate.

    Args:
        metrics: Names that begin with ``val/`` belong to the validation, the others to each step.
        facts: Attributes of the loop, such as ``model=``.
    """
    with tempfile.TemporaryDirectory(prefix="hookline-") as directory:
        loop = FakeLoop(
            num_steps=4,
            callbacks=CallbackCollection([callback], strict=True),
            **{"output_dir": Path(directory), "config": {"learning_rate": 0.1}, **facts},
        )
        _fire(loop, metrics)
    return loop


def _fire(loop: FakeLoop, metrics: Mapping[str, Any] | None) -> None:
    from hookline.experiment.results.result import ExperimentResult  # the class with methods, as in a real experiment

    values = {"loss": 1.0, "val/loss": 1.0, "reward": 0.5} if metrics is None else dict(metrics)
    evaluations = {name: value for name, value in values.items() if name.startswith("val/")}
    of_steps = {name: value for name, value in values.items() if name not in evaluations}
    callbacks, ctx, row = loop.callbacks, loop.ctx, ManifestRow(step=0, path=Path("step-0"))
    ctx.output_dir = loop.output_dir
    evaluated = EvalResult("benchmark", {"score": 1.0})
    result = RunResult("run", metrics=values | {"benchmark/score": 1.0}, evals=(evaluated,))
    arm = ArmResult("arm", {"learning_rate": 0.1}, (result,))
    callbacks.on_experiment_start(ctx)
    callbacks.on_group_start(ctx, "group")
    ctx.run_key, ctx.group_name, ctx.run_config = "run", "group", {"learning_rate": 0.1}
    callbacks.on_run_start(ctx)
    callbacks.on_train_start(loop)
    callbacks.on_checkpoint_load(loop, row)
    callbacks.on_train_epoch_start(loop)
    callbacks.on_rollout_start(loop, 0, "lesson")
    callbacks.on_rollout_end(loop, 0, [])
    callbacks.on_weights_update(loop, 1)
    callbacks.on_before_optimizer_step(loop, None)
    loop.run_steps(4, lambda step_idx: dict(of_steps))
    callbacks.on_validation_start(loop)
    callbacks.on_validation_epoch_start(loop)
    callbacks.on_validation_batch_start(loop, None, 0)
    outputs = {name.removeprefix("val/"): value for name, value in evaluations.items()}
    callbacks.on_validation_batch_end(loop, outputs, None, 0)
    loop.record_evaluation("val", dict(evaluations), ends_validation=True)
    loop.record_evaluation(evaluated.name, {"benchmark/score": 1.0})
    callbacks.on_command(loop, new_command("checkpoint", author="somebody"))
    loop.save_checkpoint()
    callbacks.on_train_epoch_end(loop)
    callbacks.on_train_end(loop, LoopArtifacts(step=loop.step, metrics=dict(loop.metrics)))
    callbacks.on_exception(loop, RuntimeError("an example of an error"))
    callbacks.on_benchmark_eval(ctx, evaluated, [{"output": "4"}], step=None)
    ctx.status = "completed"
    callbacks.on_run_end(ctx, result, arm)
    callbacks.on_group_end(ctx, "group")
    callbacks.on_experiment_end(ctx, ExperimentResult("experiment", [arm]))
    callbacks.close()


def check_callback(factory: Callable[[], Callback | Hook], **facts: Any) -> None:
    """Check that the subscribers a factory makes keep the contract of all subscribers.

    Every moment can fire with usual metrics, with none and with non-finite ones; two instances do not share state; a
    copy works and shares nothing; a checkpoint can hold the state, and it is restored equal; closing twice is harmless.

    Args:
        factory: Makes a new one at each call.
        facts: Attributes that the loop must have for it, such as ``model=``.

    Raises:
        AssertionError: A check failed; the message says which.
    """
    fire = partial(fire_everything, **facts)
    unused = factory()
    before = _saved_state(unused)
    unusual = {"loss": float("nan"), "val/loss": float("inf"), "reward": None, "note": "text"}
    for metrics in (None, {}, unusual):
        subscriber = factory()
        _expect(f"every moment can fire with metrics {metrics!r}", partial(fire, subscriber, metrics=metrics))
        _expect("closing twice is harmless", subscriber.close)
    first, second = factory(), factory()
    pair = CallbackCollection([first, second])
    assert len(set(pair.names())) == 2, "two of one class get the same name"
    assert first is not second, "the factory must make a new one each time"
    _check_state(factory, fire)
    after = _saved_state(unused)
    assert after == before, (
        f"two of one class share state: that of one changed from {before} to {after} as others were used"
    )
    _check_copy(factory, fire)


def _check_copy(factory: Callable[[], Callback | Hook], fire: Callable[[Any], Any]) -> None:
    original = factory()
    before = _saved_state(original)
    copies: list[Callback | Hook] = []
    _expect("a copy can be made", lambda: copies.append(copy.deepcopy(original)))
    assert copies[0] is not original, "copy.deepcopy() returns the original: a copy must share nothing"
    _expect("a copy works", partial(fire, copies[0]))
    after = _saved_state(original)
    assert after == before, f"a copy shares state: that of the original changed from {before} to {after} as it was used"


def _check_state(factory: Callable[[], Callback | Hook], fire: Callable[[Any], Any]) -> None:
    used = factory()
    fire(used)
    given = used.state_dict()
    state = _saved_text(given)
    restored = factory()
    restored.load_state_dict(decode(encode(given)))
    again = _saved_state(restored)
    assert again == state, f"state_dict() after load_state_dict() is {again}, not {state}"


def _saved_state(subscriber: Callback | Hook) -> str:
    return _saved_text(subscriber.state_dict())


def _saved_text(state: Any) -> str:
    """Return the state as a checkpoint would hold it, as text to compare."""
    try:
        return json.dumps(encode(state, lambda tensor: [str(tensor.dtype), tensor.tolist()]))
    except CheckpointError as error:
        raise AssertionError(f"A checkpoint cannot hold state_dict(): {error}") from error


def _expect(what: str, check: Callable[[], Any]) -> None:
    try:
        check()
    except Exception as error:
        raise AssertionError(f"Failed check: {what}: {type(error).__name__}: {error}") from error
