"""Seed 003: typed positional moments of a loop and of an experiment, and the context that links their records."""

import asyncio
import inspect
import shutil
import typing
from typing import Any

import pytest

import hookline as hl
from hookline import (
    ArmResult,
    Callback,
    EvalResult,
    LogContext,
    LoopArtifacts,
    LoopState,
    ManifestRow,
    RunResult,
    TrainingBatch,
)
from hookline._engine.state import ExperimentResult  # the data of the one that has methods
from hookline.testing import Event, FakeLoop, RecordingCallback, fire_everything

NUMBERS = dict[str, Any]
SIGNATURES = {
    "on_train_start": [("loop", LoopState)],
    "on_train_end": [("loop", LoopState), ("artifacts", LoopArtifacts)],
    "on_step_end": [("loop", LoopState), ("step_idx", int), ("batch", Any), ("metrics", NUMBERS)],
    "on_checkpoint": [("loop", LoopState), ("row", ManifestRow)],
    "on_eval": [("loop", LoopState), ("step_idx", int), ("eval_name", str), ("metrics", NUMBERS)],
    "on_experiment_start": [("ctx", LogContext)],
    "on_group_start": [("ctx", LogContext), ("group_name", str)],
    "on_run_start": [("ctx", LogContext)],
    "on_benchmark_eval": [
        ("ctx", LogContext),
        ("eval_result", EvalResult),
        ("predictions", list[dict[str, Any]]),
        ("step", int | None),
    ],
    "on_run_end": [("ctx", LogContext), ("run_result", RunResult), ("arm", ArmResult)],
    "on_experiment_end": [("ctx", LogContext), ("result", ExperimentResult)],
}


def run_of(*callbacks: Any, **options: Any) -> hl.Run:
    return hl.run(callbacks=callbacks, strict=True, summary=False, **options)


# Signatures and defaults


@pytest.mark.parametrize("moment", SIGNATURES)
def test_moment_arguments_and_types_are_those_of_the_seed(moment):
    types = {name: value for name, value in vars(hl._engine.state).items() if isinstance(value, type)}
    hints = typing.get_type_hints(getattr(Callback, moment), localns=types)
    hints.pop("return")
    assert list(hints.items()) == SIGNATURES[moment]


@pytest.mark.parametrize("moment", SIGNATURES)
def test_moment_arguments_are_positional_but_for_the_step_of_a_benchmark(moment):
    parameters = list(inspect.signature(getattr(Callback, moment)).parameters.values())
    by_keyword = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert by_keyword == ({"step": None} if moment == "on_benchmark_eval" else {})
    assert {p.kind for p in parameters if p.name not in by_keyword} == {inspect.Parameter.POSITIONAL_ONLY}
    assert [p.name for p in parameters if p.default is not p.empty] == list(by_keyword)


@pytest.mark.parametrize("moment", hl.MOMENTS)
def test_moment_default_is_a_sync_no_op_with_a_docstring(moment):
    function = getattr(Callback, moment)
    arguments = [None] * len(hl.MOMENTS[moment].arguments)
    assert getattr(Callback(), moment)(*arguments) is None
    assert not inspect.iscoroutinefunction(function)
    assert function.__doc__


def test_callback_that_overrides_nothing_listens_to_nothing():
    assert hl.CallbackCollection([Callback()]).plan() == {}
    fire_everything(Callback())


def test_callback_may_name_the_loop_state_as_the_seed_does():
    class Seed(Callback):
        def __init__(self):
            self.seen = []

        def on_step_end(
            self, state: LoopState, step_idx: int, batch: "TrainingBatch", metrics: dict[str, float]
        ) -> None:
            self.seen.append((state.step, step_idx, batch.tokens, metrics["loss"]))

    callback = Seed()
    with run_of(callback) as run:
        for batch in run.steps([TrainingBatch("data", size=2, tokens=7)] * 2):
            run.log(loss=batch.size / 2)
    assert callback.seen == [(1, 0, 7, 1.0), (2, 1, 7, 1.0)]


# Loop scope


def test_loop_moments_of_a_run_each_fire_at_exactly_one_place(tmp_path):
    recording = RecordingCallback()
    with run_of(recording, root=tmp_path) as run:
        for _ in run.steps(["batch"]):
            run.log(loss=1.0)
            run.request_checkpoint()
        with run.validate() as val:
            val.log(loss=2.0)
    (row,) = run.checkpoints
    events = [event for event in recording.events if event.moment in SIGNATURES]
    assert events == [
        Event("on_train_start"),
        Event("on_step_end", (0, "batch", {"loss": 1.0})),
        Event("on_checkpoint", (row,)),
        Event("on_eval", (0, "val", {"val/loss": 2.0})),
        Event("on_train_end", (LoopArtifacts(1, {"loss": 1.0, "val/loss": 2.0}, (row,), run.dir),)),
    ]


def test_on_train_start_fires_once_before_the_first_batch_is_drawn():
    seen = []

    class Opens(Callback):
        def on_train_start(self, state):
            seen.append(("start", state.step, state.ctx.run_config))

    def batches():
        for number in range(2):
            seen.append(number)
            yield number

    with run_of(Opens(), config={"lr": 0.1}) as run:
        for _ in run.steps(batches()):
            pass
    assert seen == [("start", 0, {"lr": 0.1}), 0, 1]


def test_on_train_end_fires_once_after_the_final_checkpoint(tmp_path):
    seen = []

    class Closes(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            if state.step == state.num_steps:
                state.request_checkpoint()

        def on_checkpoint(self, state, row):
            seen.append(("checkpoint", row.step))

        def on_train_end(self, state, artifacts):
            seen.append(("end", artifacts.step, [row.step for row in artifacts.checkpoints], artifacts.metrics))

    with run_of(Closes(), root=tmp_path) as run:
        for _ in run.steps(3):
            run.log(loss=0.5)
    assert seen == [("checkpoint", 3), ("end", 3, [3], {"loss": 0.5})]


def test_on_train_end_after_a_stop_says_why_and_does_not_fire_after_a_failure():
    recording = RecordingCallback()
    with run_of(recording) as run:
        for _ in run.steps(5):
            run.request_stop("enough")
    assert recording.events[-1] == Event("on_train_end", (LoopArtifacts(1, output_dir=run.dir, stop_reason="enough"),))
    recording.clear()
    with pytest.raises(ZeroDivisionError), run_of(recording) as run:
        for step in run.steps(5):
            step / 0
    assert "on_train_end" not in recording.names()


def test_on_step_end_sees_the_whole_row_and_what_it_derives_lands_there():
    # The seed fires it after the row is written; here it is right before (design, section 4), on_log is after.
    seen = []

    class Derives(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            seen.append((step_idx, batch, dict(metrics), len(state.history)))
            state.log("perplexity", 2 ** metrics["loss"])

        def on_log(self, state, step, metrics):
            seen.append((step, dict(metrics), len(state.history)))

    with run_of(Derives()) as run:
        for _ in run.steps(["a"]):
            run.log(loss=2.0)
            run.log(lr=0.1)
    row = {"loss": 2.0, "lr": 0.1}
    assert seen == [(0, "a", row, 0), (1, {**row, "perplexity": 4.0}, 1)]
    assert [(row.step, row.metrics) for row in run.history] == [(1, {"loss": 2.0, "lr": 0.1, "perplexity": 4.0})]


def test_on_step_end_deriving_a_metric_from_each_of_them_works():
    class Halves(Callback):
        def on_step_end(self, state, step_idx, batch, metrics):
            for name, value in metrics.items():
                state.log(f"half/{name}", value / 2)

    with run_of(Halves()) as run:
        for _ in run.steps(1):
            run.log(loss=2.0, lr=0.5)
    assert run.metrics == {"loss": 2.0, "lr": 0.5, "half/loss": 1.0, "half/lr": 0.25}


def test_on_checkpoint_fires_after_the_row_is_recorded_and_may_prune(tmp_path):
    class KeepsTheLast(Callback):
        def __init__(self):
            self.rows = []

        def on_checkpoint(self, state, row):
            assert state.checkpoints[-1] is row
            assert row.path.is_dir()
            for old in self.rows:
                shutil.rmtree(old.path, ignore_errors=True)
            self.rows.append(row)

    callback = KeepsTheLast()
    with run_of(callback, root=tmp_path) as run:
        for _ in run.steps(3):
            run.request_checkpoint()
    assert [row.step for row in callback.rows] == [1, 2, 3]
    assert [row.step for row in run.checkpoints if row.path.exists()] == [3]


def test_on_eval_fires_once_for_each_evaluator_with_its_own_metrics():
    recording = RecordingCallback()
    with run_of(recording) as run:
        for _ in run.steps(2):
            for name, score in (("val", 1.0), ("arithmetic", 0.5)):
                with run.validate(name) as val:
                    val.log(score=score)
    evals = [event.arguments for event in recording.events if event.moment == "on_eval"]
    assert evals == [
        (0, "val", {"val/score": 1.0}),
        (0, "arithmetic", {"arithmetic/score": 0.5}),
        (1, "val", {"val/score": 1.0}),
        (1, "arithmetic", {"arithmetic/score": 0.5}),
    ]


def test_on_eval_may_drive_early_stopping():
    class StopsWhenSolved(Callback):
        def on_eval(self, state, step_idx, eval_name, metrics):
            if metrics["val/accuracy"] >= 0.9:
                state.request_stop(f"{eval_name} solved at {step_idx}")

    with run_of(StopsWhenSolved()) as run:
        for accuracy in run.steps([0.3, 0.6, 0.9, 1.0]):
            with run.validate() as val:
                val.log(accuracy=accuracy)
    assert (run.step, run.state, run.stop_reason) == (3, "stopped", "val solved at 2")


def test_async_work_spawned_from_inside_a_hook_runs():
    done = []

    class Ships(Callback):
        def __init__(self):
            self.tasks = []

        def on_step_end(self, state, step_idx, batch, metrics):
            self.tasks.append(asyncio.create_task(self.ship(step_idx)))

        async def ship(self, step_idx):
            done.append(step_idx)

    async def main():
        ships = Ships()
        with run_of(ships) as run:
            for _ in run.steps(3):
                pass
        await asyncio.gather(*ships.tasks)

    asyncio.run(main())
    assert done == [0, 1, 2]


def test_async_work_in_a_script_without_an_event_loop_is_for_an_async_moment():
    done = []

    class Ships(Callback):
        async def on_step_end(self, state, step_idx):
            await asyncio.create_task(self.ship(step_idx))

        async def ship(self, step_idx):
            done.append(step_idx)

    with run_of(Ships()) as run:
        list(run.steps(3))
    assert done == [0, 1, 2]


def test_async_work_spawned_where_no_event_loop_runs_is_pythons_error():
    class Ships(Callback):
        def on_step_end(self, state, step_idx):
            work = self.ship(step_idx)
            try:
                self.task = asyncio.create_task(work)
            finally:
                work.close()

        async def ship(self, step_idx):
            raise AssertionError("nobody runs it")

    with pytest.raises(RuntimeError, match="no running event loop"), run_of(Ships()) as run:
        list(run.steps(3))


# Experiment scope


class Logger(Callback):
    """One instance for both scopes: creates records, parents them by the ids in the context, and closes them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_experiment_start(self, ctx: LogContext) -> None:
        ctx.ids["experiment_id"] = "e1"
        self.calls.append(("create_experiment", "e1"))

    def on_group_start(self, ctx: LogContext, group_name: str) -> None:
        ctx.ids[f"group:{group_name}"] = "g1"
        self.calls.append(("create_group", group_name, "under", ctx.ids["experiment_id"]))

    def on_run_start(self, ctx: LogContext) -> None:
        ctx.ids["run_id"] = "r1"
        parents = (ctx.ids["experiment_id"], ctx.ids[f"group:{ctx.group_name}"])
        self.calls.append(("create_run", ctx.run_key, "under", *parents))

    def on_train_start(self, state: LoopState) -> None:
        self.calls.append(("open", state.step))

    def on_step_end(self, state: LoopState, step_idx: int, batch: Any, metrics: dict[str, float]) -> None:
        self.calls.append(("step", step_idx, metrics["loss"]))

    def on_eval(self, state: LoopState, step_idx: int, eval_name: str, metrics: dict[str, float]) -> None:
        self.calls.append(("eval", step_idx, eval_name))

    def on_checkpoint(self, state: LoopState, row: ManifestRow) -> None:
        self.calls.append(("ship", row.step))

    def on_train_end(self, state: LoopState, artifacts: LoopArtifacts) -> None:
        self.calls.append(("flush", artifacts.step))

    def on_benchmark_eval(
        self, ctx: LogContext, eval_result: EvalResult, predictions: list[dict], *, step: int | None = None
    ) -> None:
        self.calls.append(("create_eval", eval_result.name, step, predictions, "under", ctx.ids["run_id"]))

    def on_run_end(self, ctx: LogContext, run_result: RunResult, arm: ArmResult) -> None:
        self.calls.append(("update_run", ctx.ids["run_id"], run_result.status, arm.name))

    def on_experiment_end(self, ctx: LogContext, result: ExperimentResult) -> None:
        self.calls.append(("summary", ctx.ids["experiment_id"], [arm.name for arm in result.arms]))


def test_logger_one_instance_owns_the_experiment_and_the_loop():
    logger = Logger()
    fire_everything(logger)
    assert logger.calls == [
        ("create_experiment", "e1"),
        ("create_group", "group", "under", "e1"),
        ("create_run", "run", "under", "e1", "g1"),
        ("open", 0),
        *[("step", step_idx, 1.0) for step_idx in range(4)],
        ("eval", 3, "val"),
        ("eval", 3, "benchmark"),
        ("ship", 4),
        ("flush", 4),
        ("create_eval", "benchmark", None, [{"output": "4"}], "under", "r1"),
        ("update_run", "r1", "completed", "arm"),
        ("summary", "e1", ["arm"]),
    ]


def test_logger_finds_its_run_id_from_the_loop_in_every_step():
    class LogsByRun(Logger):
        def on_step_end(self, state, step_idx, batch, metrics):
            self.calls.append(("log", state.ctx.ids["run_id"], step_idx))

    logger = LogsByRun()
    fire_everything(logger)
    assert [call for call in logger.calls if call[0] == "log"] == [("log", "r1", step) for step in range(4)]


def test_on_run_start_has_the_run_config():
    configs = []

    class SnapshotsConfig(Callback):
        def on_run_start(self, ctx):
            configs.append(ctx.run_config)

    fire_everything(SnapshotsConfig())
    assert len(configs) == 1
    assert configs[0] is not None


def test_on_run_end_has_the_final_status():
    seen = []

    class RecordsStatus(Callback):
        def on_run_end(self, ctx, run_result, arm):
            seen.append((ctx.status, ctx.error, run_result.status))

    fire_everything(RecordsStatus())
    assert seen == [("completed", None, "completed")]


def test_experiment_moments_fire_in_the_order_of_an_experiments_life():
    recording = RecordingCallback()
    fire_everything(recording)
    experiment = [name for name in recording.names() if hl.MOMENTS[name].subject == "ctx"]
    assert experiment == [
        "on_experiment_start",
        "on_group_start",
        "on_run_start",
        "on_benchmark_eval",
        "on_run_end",
        "on_group_end",
        "on_experiment_end",
    ]


def test_fire_everything_reaches_every_moment_of_the_catalogue():
    recording = RecordingCallback()
    fire_everything(recording)
    assert set(recording.names()) == set(hl.MOMENTS)


def test_log_context_defaults_are_empty_and_not_shared():
    ctx, other = LogContext(), LogContext()
    ctx.ids["experiment_id"] = 1
    assert (other.ids, other.extras, other.run_config, other.group_name) == ({}, {}, None, None)


def test_log_context_ids_link_several_groups_and_runs_to_their_parents():
    class Links(Callback):
        def __init__(self):
            self.parents = {}

        def on_experiment_start(self, ctx):
            ctx.ids["experiment_id"] = "experiment"

        def on_group_start(self, ctx, group_name):
            ctx.ids[f"group:{group_name}"] = f"group of {group_name}"

        def on_run_start(self, ctx):
            ctx.ids["run_id"] = ctx.run_key
            self.parents[ctx.run_key] = (ctx.ids["experiment_id"], ctx.ids[f"group:{ctx.group_name}"])

    links, ctx = Links(), LogContext()
    callbacks = hl.CallbackCollection([links], strict=True)
    callbacks.on_experiment_start(ctx)
    for group in ("sft", "grpo"):
        callbacks.on_group_start(ctx, group)
        for repeat in range(2):
            ctx.run_key, ctx.group_name = f"{group}-{repeat}", group
            callbacks.on_run_start(ctx)
    assert links.parents == {
        f"{group}-{repeat}": ("experiment", f"group of {group}") for group in ("sft", "grpo") for repeat in range(2)
    }


def test_on_benchmark_eval_in_the_loop_has_the_step_and_after_training_none():
    class EvalRows(Callback):
        def __init__(self):
            self.rows = {}

        def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
            self.rows[eval_result.name, step] = (dict(eval_result.metrics), predictions)

    rows, predictions = EvalRows(), [{"task": "2+2", "output": "4"}]
    callbacks, ctx = hl.CallbackCollection([rows], strict=True), LogContext()
    result = EvalResult("arithmetic", {"accuracy": 0.5})
    callbacks.on_benchmark_eval(ctx, result, predictions, step=10)
    callbacks.on_benchmark_eval(ctx, result, predictions, step=20)
    callbacks.on_benchmark_eval(ctx, result, predictions)
    callbacks.on_benchmark_eval(ctx, result, predictions, step=None)
    assert rows.rows == {("arithmetic", step): ({"accuracy": 0.5}, predictions) for step in (10, 20, None)}


def test_on_benchmark_eval_carries_metrics_breakdowns_and_tags():
    recording = RecordingCallback()
    result = EvalResult("math", {"accuracy": 0.5}, {"level": {"easy": 1.0, "hard": 0.0}}, ("held-out",))
    hl.CallbackCollection([recording]).on_benchmark_eval(LogContext(), result, [], step=7)
    assert recording.events == [Event("on_benchmark_eval", (result, [], 7))]
    assert (result.metrics, result.breakdowns, result.tags) == (
        {"accuracy": 0.5},
        {"level": {"easy": 1.0, "hard": 0.0}},
        ("held-out",),
    )


def test_on_benchmark_eval_of_a_callback_that_leaves_off_the_step_works():
    seen = []

    class NoStep(Callback):
        def on_benchmark_eval(self, ctx, eval_result, predictions):
            seen.append(eval_result.name)

    hl.CallbackCollection([NoStep()], strict=True).on_benchmark_eval(LogContext(), EvalResult("math"), [], step=7)
    assert seen == ["math"]


def test_loop_of_hookline_is_a_loop_state():
    assert isinstance(FakeLoop(), LoopState)
    assert isinstance(hl.run(), LoopState)
