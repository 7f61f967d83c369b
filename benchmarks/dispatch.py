"""What firing a moment costs, as a ratio to a direct method call, beside the peers that are installed.

Five situations: nobody listens; one callback; ten; ten of which one overrides the moment; ten that
are not due. hookline is a plain `CallbackCollection`, isolation and accounting on, past its first
samples, and its cadence is `every=`. Each peer is called as its own trainer calls it, and a cadence
is a test inside each callback (Ignite's own event filter costs more than that). Keras's thread pool,
which it uses while no callback overrides the moment, is waited for. The ten callbacks are of ten
classes, as they are in life; ten of one class would favour dispatchers that call all of them from
one line (torchtnt).

Beneath the table: what an `add` to a collection of ten costs, the firing after it (which rebuilds
the moment), and what `import hookline` adds to the start of an interpreter. Nothing is asserted:
the bars are marked as met or not, by the clock and by the thread's CPU time. `measure` says how
things are timed.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from measure import Case, Loop, at_least, fresh, import_milliseconds, met, quiet, round_robin
from rich.console import Console
from rich.table import Table

import hookline
from hookline import Callback, CallbackCollection

SITUATIONS = {
    "nobody": "nobody",
    "one": "one",
    "ten": "ten",
    "ten_one_overrides": "one of ten",
    "ten_not_due": "ten not due",
}
BARS = {"nobody": 1.6, "one": 3.0, "ten": 18.0, "ten_one_overrides": 3.2, "ten_not_due": 3.5}
"""At most so many times a direct call, for hookline."""
LEADS = {"torchtnt": 1.4, "Hugging Face": 15.0}
"""At least so many times as fast as these, with ten callbacks."""
EVERY = 10**9
"""A cadence that no benchmark lives to see."""
DIRECT = Case("direct", "call")

Loops = dict[str, Loop]


def _fire_step(target: Any, loop: Any, metrics: dict[str, Any], calls: int) -> None:
    for i in range(calls):
        target.on_step_end(loop, i, None, metrics)


def _fire_torchtnt(handler: Any, state: Any, unit: Any, calls: int) -> None:
    for _ in range(calls):
        handler.on_train_step_end(state, unit)


def _fire_hugging_face(handler: Any, args: Any, state: Any, control: Any, calls: int) -> None:
    for _ in range(calls):
        handler.on_step_end(args, state, control)


def _fire_lightning(call_callback_hooks: Any, trainer: Any, calls: int) -> None:
    for i in range(calls):
        call_callback_hooks(trainer, "on_train_batch_end", None, None, i)


def _fire_keras(callbacks: Any, logs: Any, calls: int) -> None:
    for i in range(calls):
        callbacks.on_train_batch_end(i, logs)
    callbacks.on_epoch_end(0, logs)


def _fire_ignite(engine: Any, event: Any, calls: int) -> None:
    for _ in range(calls):
        engine.fire_event(event)


def _fire_pluggy(hook: Any, loop: Any, metrics: dict[str, Any], calls: int) -> None:
    for i in range(calls):
        hook.on_step_end(loop=loop, step_idx=i, batch=None, metrics=metrics)


def situations(
    prepare: Callable[[list[Any]], Loop],
    *,
    observer: Callable[[], Any],
    bystander: Callable[[], Any],
    cadenced: Callable[[], Any],
) -> Loops:
    """The five situations; ``prepare`` makes the loop that fires for these callbacks."""
    return {
        "nobody": prepare([]),
        "one": prepare([observer()]),
        "ten": prepare([observer() for _ in range(10)]),
        "ten_one_overrides": prepare([observer(), *(bystander() for _ in range(9))]),
        "ten_not_due": prepare([cadenced() for _ in range(10)]),
    }


def overriding(base: type, moment: str, method: Callable[..., None]) -> Callable[[], Any]:
    """Makes callbacks, each of a class of its own, with this method."""
    return lambda: type("Overriding", (base,), {moment: fresh(method)})()


def _listen(self: Any, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
    pass


observer = overriding(Callback, "on_step_end", _listen)


def direct_loop() -> Loop:
    """The base of all ratios: the same call on a callback itself."""
    return partial(fresh(_fire_step), observer(), None, {})


def hookline_loops() -> Loops:
    """`CallbackCollection` with the default policy; not due by ``every=``."""

    def prepare(callbacks: list[Any]) -> Loop:
        return partial(fresh(_fire_step), CallbackCollection(callbacks), None, {})

    def cadenced() -> Any:
        return observer().configure(every=EVERY)

    return situations(prepare, observer=observer, bystander=Callback, cadenced=cadenced)


def torchtnt_loops() -> Loops:
    """Its `CallbackHandler`, which keeps a list of the overriding callbacks for each hook."""
    from torchtnt.framework._callback_handler import CallbackHandler
    from torchtnt.framework.callback import Callback as Base
    from torchtnt.utils.progress import Progress

    def listen(self: Any, state: Any, unit: Any) -> None:
        pass

    def test(self: Any, state: Any, unit: Any) -> None:
        if (unit.train_progress.num_steps_completed + 1) % EVERY == 0:
            self.ran = True

    def prepare(callbacks: list[Any]) -> Loop:
        unit = SimpleNamespace(train_progress=Progress())
        return partial(fresh(_fire_torchtnt), CallbackHandler(callbacks), None, unit)

    made = partial(overriding, Base, "on_train_step_end")
    return situations(prepare, observer=made(listen), bystander=Base, cadenced=made(test))


def hugging_face_loops() -> Loops:
    """Its `CallbackHandler`, without the `Trainer` around it."""
    from transformers.trainer_callback import CallbackHandler, TrainerCallback, TrainerControl, TrainerState

    def listen(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        pass

    def test(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (state.global_step + 1) % EVERY == 0:
            self.ran = True

    def prepare(callbacks: list[Any]) -> Loop:
        handler = CallbackHandler(callbacks, None, None, None, None)
        return partial(fresh(_fire_hugging_face), handler, None, TrainerState(), TrainerControl())

    made = partial(overriding, TrainerCallback, "on_step_end")
    return situations(prepare, observer=made(listen), bystander=TrainerCallback, cadenced=made(test))


def lightning_loops() -> Loops:
    """The function that its loops call for every hook, with a real `Trainer` and module."""
    from lightning.pytorch import Callback as Base
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.trainer.call import _call_callback_hooks

    def listen(self: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass

    def test(self: Any, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % EVERY == 0:
            self.ran = True

    off = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)

    def prepare(callbacks: list[Any]) -> Loop:
        trainer = Trainer(accelerator="cpu", callbacks=callbacks, **off)
        trainer.strategy.connect(LightningModule())
        return partial(fresh(_fire_lightning), _call_callback_hooks, trainer)

    made = partial(overriding, Base, "on_train_batch_end")
    return situations(prepare, observer=made(listen), bystander=Base, cadenced=made(test))


def keras_loops() -> Loops:
    """Its `CallbackList`, begun as `fit` begins it."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras.callbacks import Callback as Base
    from keras.callbacks import CallbackList

    def listen(self: Any, batch: int, logs: Any = None) -> None:
        pass

    def test(self: Any, batch: int, logs: Any = None) -> None:
        if (batch + 1) % EVERY == 0:
            self.ran = True

    def prepare(callbacks: list[Any]) -> Loop:
        listed = CallbackList(callbacks)
        listed.on_train_begin()
        return partial(fresh(_fire_keras), listed, {})

    made = partial(overriding, Base, "on_train_batch_end")
    return situations(prepare, observer=made(listen), bystander=Base, cadenced=made(test))


def ignite_loops() -> Loops:
    """Its `Engine`, with handlers on events."""
    from ignite.engine import Engine, Events

    event = Events.ITERATION_COMPLETED

    def listen(engine: Any) -> None:
        pass

    def test(engine: Any) -> None:
        if (engine.state.iteration + 1) % EVERY == 0:
            engine.terminate()

    def prepare(handlers: list[Any]) -> Loop:
        engine = Engine(lambda engine, batch: None)
        for listened, handler in handlers:
            engine.add_event_handler(listened, fresh(handler))
        return partial(fresh(_fire_ignite), engine, event)

    return situations(
        prepare,
        observer=lambda: (event, listen),
        bystander=lambda: (Events.EPOCH_COMPLETED, listen),
        cadenced=lambda: (event, test),
    )


def pluggy_loops() -> Loops:
    """A `PluginManager` with one hook of four arguments."""
    import pluggy

    implements = pluggy.HookimplMarker("benchmark")

    def test(self: Any, loop: Any, step_idx: int, batch: Any, metrics: Any) -> None:
        if (step_idx + 1) % EVERY == 0:
            self.ran = True

    def prepare(plugins: list[Any]) -> Loop:
        manager = pluggy.PluginManager("benchmark")
        manager.add_hookspecs(overriding(object, "on_step_end", pluggy.HookspecMarker("benchmark")(fresh(_listen)))())
        for plugin in plugins:
            manager.register(plugin)
        return partial(fresh(_fire_pluggy), manager.hook, None, {})

    made = partial(overriding, object, "on_step_end")
    return situations(
        prepare, observer=made(implements(fresh(_listen))), bystander=object, cadenced=made(implements(test))
    )


@dataclass(frozen=True, slots=True)
class Peer:
    """A framework to compare with; ``loops`` raises ImportError where it is missing."""

    name: str
    package: str
    distribution: str
    loops: Callable[[], Loops]


PEERS = (
    Peer("torchtnt", "torchtnt", "torchtnt", torchtnt_loops),
    Peer("Hugging Face", "transformers", "transformers", hugging_face_loops),
    Peer("Lightning", "lightning", "lightning", lightning_loops),
    Peer("Keras", "keras", "keras", keras_loops),
    Peer("Ignite", "ignite", "pytorch-ignite", ignite_loops),
    Peer("pluggy", "pluggy", "pluggy", pluggy_loops),
)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was measured; ratios and nanoseconds by system and situation, also of the thread's CPU time."""

    cpus: int | None
    rounds: int
    calls: int
    versions: dict[str, str]
    not_installed: list[str]
    direct_nanoseconds: float
    nanoseconds: dict[str, dict[str, float]]
    ratios: dict[str, dict[str, float]]
    direct_cpu_nanoseconds: float
    cpu_nanoseconds: dict[str, dict[str, float]]
    cpu_ratios: dict[str, dict[str, float]]
    add_microseconds: float
    add_cpu_microseconds: float
    rebuild_microseconds: float
    rebuild_cpu_microseconds: float
    import_milliseconds: float
    import_cpu_milliseconds: float

    @property
    def leads(self) -> dict[str, float]:
        """How many times as fast as a peer hookline is, with ten callbacks, in CPU time."""
        ten = {system: ratios["ten"] for system, ratios in self.cpu_ratios.items()}
        return {peer: ten[peer] / ten["hookline"] for peer in LEADS if peer in ten}


def measure(*, rounds: int, calls: int) -> Report:
    """Measure everything there is."""
    found, missing = _installed()
    systems = {"hookline": hookline_loops(), **{peer.name: loops for peer, loops in found.items()}}
    cases = {Case(system, name): loop for system, loops in systems.items() for name, loop in loops.items()}
    timings = round_robin({DIRECT: direct_loop(), **cases}, rounds=rounds, calls=calls)

    def of_each(figure: Callable[[Case], float]) -> dict[str, dict[str, float]]:
        return {system: {name: figure(Case(system, name)) for name in SITUATIONS} for system in systems}

    (add, add_cpu), (rebuild, rebuild_cpu) = _add_and_rebuild(adds=min(calls, 500))
    started, started_cpu = import_milliseconds("hookline", Path(hookline.__file__).parents[1], starts=rounds)
    return Report(
        cpus=os.cpu_count(),
        rounds=rounds,
        calls=calls,
        versions=_versions(found),
        not_installed=missing,
        direct_nanoseconds=timings.wall.nanoseconds(DIRECT),
        nanoseconds=of_each(timings.wall.nanoseconds),
        ratios=of_each(partial(timings.wall.ratio, base=DIRECT)),
        direct_cpu_nanoseconds=timings.cpu.nanoseconds(DIRECT),
        cpu_nanoseconds=of_each(timings.cpu.nanoseconds),
        cpu_ratios=of_each(partial(timings.cpu.ratio, base=DIRECT)),
        add_microseconds=add,
        add_cpu_microseconds=add_cpu,
        rebuild_microseconds=rebuild,
        rebuild_cpu_microseconds=rebuild_cpu,
        import_milliseconds=started,
        import_cpu_milliseconds=started_cpu,
    )


def _installed() -> tuple[dict[Peer, Loops], list[str]]:
    found, missing = {}, []
    for peer in PEERS:
        try:
            with quiet():
                found[peer] = peer.loops()
        except ImportError as error:
            absent = error.name == peer.package
            missing.append(peer.name if absent else f"{peer.name} ({error})")
    return found, missing


def _versions(peers: Iterable[Peer]) -> dict[str, str]:
    own = {"Python": platform.python_version(), "hookline": hookline.__version__}
    return own | {peer.name: importlib.metadata.version(peer.distribution) for peer in peers}


def _add_and_rebuild(*, adds: int) -> tuple[tuple[float, float], tuple[float, float]]:
    """Microseconds for an `add` to a collection of ten, and for the firing after it: by the clock, and CPU time."""
    collection = CallbackCollection(observer() for _ in range(10))

    def times(clock: Callable[[], int]) -> tuple[float, float]:
        taken = [_add_and_fire(collection, observer(), clock) for _ in range(adds)]
        return median(add for add, _ in taken) / 1e3, median(rebuild for _, rebuild in taken) / 1e3

    # One clock at a time: reading the CPU time is a system call, which the other one would count.
    (add, rebuild), (add_cpu, rebuild_cpu) = times(time.perf_counter_ns), times(time.thread_time_ns)
    return (add, add_cpu), (rebuild, rebuild_cpu)


def _add_and_fire(collection: Any, newcomer: Callback, clock: Callable[[], int]) -> tuple[int, int]:
    collection.on_step_end(None, 0, None, {})
    start = clock()
    collection.add(newcomer)
    added = clock()
    collection.on_step_end(None, 0, None, {})
    fired = clock()
    collection.remove(newcomer)
    return added - start, fired - added


def show(report: Report, console: Console) -> None:
    """Print the tables, hookline's bars in them, and the lines beneath."""
    direct, direct_cpu = report.direct_nanoseconds, report.direct_cpu_nanoseconds
    console.print(_table(f"Times a direct method call ({direct:.1f} ns)", report.ratios))
    console.print(_table(f"The same in CPU time of the thread ({direct_cpu:.1f} ns)", report.cpu_ratios))
    for line in _lines(report):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _table(title: str, ratios_of: dict[str, dict[str, float]]) -> Table:
    table = Table("", title=title)
    for heading in SITUATIONS.values():
        table.add_column(heading, justify="right")
    for system, ratios in ratios_of.items():
        table.add_row(system, *(f"{ratios[name]:.2f}" for name in SITUATIONS))
        if system == "hookline":
            bars = (f"{BARS[name]} {met(ratios[name] <= BARS[name])}" for name in SITUATIONS)
            table.add_row("  bar", *bars, end_section=True)
    return table


def _lines(report: Report) -> Iterator[str]:
    for peer, lead in report.leads.items():
        bar = LEADS[peer]
        yield f"ten callbacks: {lead:.2f} times as fast as {peer} in CPU time (bar {bar} {met(lead >= bar)})"
    added, rebuilt = report.add_microseconds, report.rebuild_microseconds
    yield f"add to a collection of ten: {added:.1f} µs (CPU {report.add_cpu_microseconds:.1f})"
    yield f"rebuild and first firing after it: {rebuilt:.1f} µs (CPU {report.rebuild_cpu_microseconds:.1f})"
    started, started_cpu = report.import_milliseconds, report.import_cpu_milliseconds
    yield f"import hookline, over a bare interpreter: {started:.1f} ms (CPU {started_cpu:.1f})"
    if report.not_installed:
        yield f"not installed: {', '.join(report.not_installed)}"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield f"{report.rounds} rounds of {report.calls:,} calls; {report.cpus} CPUs; {versions}"


def main() -> None:
    """Measure, and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description="What firing a moment costs, beside hookline's peers.")
    parser.add_argument("--rounds", type=at_least(1), default=15, help="times that every case is measured")
    parser.add_argument("--calls", type=at_least(1), default=20_000, help="calls in each measurement")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    report = measure(rounds=options.rounds, calls=options.calls)
    if options.json:
        print(json.dumps(asdict(report) | {"leads": report.leads}))
    else:
        show(report, Console())


if __name__ == "__main__":
    main()
