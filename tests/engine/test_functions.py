"""Plain functions as subscribers: one moment, logger functions, dicts of hook functions."""

import functools
import logging
import threading
from types import SimpleNamespace

import pytest
from waiting import wait_until

import hookline as hl
from hookline._engine.functions import HOOK_FUNCTIONS, FunctionCallback, HookFunction, LoggerFunction, hook_functions


class Scalar:
    """A tensor with one element, as far as logging needs it."""

    def __init__(self, value):
        self.value = value

    def item(self):
        return self.value


def loop_at(step=3, **facts):
    """A loop in its second epoch, after ``step`` steps of 20."""
    return SimpleNamespace(step=step, num_steps=20, epoch=1, num_epochs=2, rank=0, metrics={}, **facts)


def strict(*subscribers):
    return hl.CallbackCollection(subscribers, strict=True)


def refused(change):
    with pytest.raises(hl.HooklineError) as caught:
        change()
    return caught.value


@pytest.mark.parametrize("moment", ["step_end", "on_step_end"])
def test_on_calls_the_function_at_the_moment(moment):
    seen = []
    callbacks = strict(hl.on(moment, lambda loop, step_idx, batch: seen.append((step_idx, batch))))
    callbacks.on_step_end(loop_at(), 2, "batch", {})
    assert seen == [(2, "batch")]


def test_on_as_a_decorator_gives_a_subscriber_that_is_still_callable():
    @hl.on("step_end", every=2, name="doubling")
    def doubled(loop, step_idx):
        return {"doubled": 2 * step_idx}

    assert isinstance(doubled, FunctionCallback)
    assert doubled(None, step_idx=4) == {"doubled": 8}
    assert strict(doubled).names() == ["doubling"]


def test_on_options_are_those_of_any_subscriber():
    seen = []
    callbacks = strict(
        hl.on("step_end", lambda loop, step_idx: seen.append(("late", step_idx)), priority=-1),
        hl.on("step_end", lambda loop, step_idx: seen.append(("sparse", step_idx)), every=2),
    )
    for step_idx in range(2):
        callbacks.on_step_end(loop_at(step_idx + 1), step_idx, None, {})
    assert seen == [("late", 0), ("sparse", 1), ("late", 1)]


def test_on_returned_dict_is_logged_under_the_function_name():
    def overfitting(loop):
        return {"gap": 0.5}

    logged = []
    strict(hl.on("step_end", overfitting)).on_step_end(loop_at(log=logged.append), 0, None, {})
    assert logged == [{"overfitting/gap": 0.5}]


def test_on_function_names_lambdas_and_partials_go_by_the_moment():
    def named(loop):
        pass

    callbacks = strict(
        hl.on("train_start", named),
        hl.on("train_start", lambda loop: None),
        hl.on("train_end", functools.partial(named)),
        hl.on("train_start", named),
    )
    assert callbacks.names() == ["named", "on_train_start", "on_train_end", "named_2"]


def test_on_misspelt_moment_is_refused_with_the_closest():
    error = refused(lambda: hl.on("step_ends", print))
    assert isinstance(error, hl.MomentError)
    assert str(error) == "'step_ends' is not a moment. Did you mean 'on_step_end'?"


def test_on_function_that_cannot_be_called_is_refused_with_both_signatures():
    def backwards(loop, metrics):
        pass

    error = refused(lambda: hl.on("step_end", backwards))
    assert str(error) == (
        "on('step_end'): backwards(loop, metrics) cannot be called at the moment on_step_end.\n"
        "    it is defined as    backwards(loop, metrics)\n"
        "    it is called as     on_step_end(loop, step_idx, batch, metrics)\n"
        "Trailing arguments may be left off; their order may not change."
    )


@pytest.mark.parametrize("function", [5, "fn", ["fn"]])
def test_on_something_that_is_not_a_function_is_refused(function):
    assert isinstance(refused(lambda: hl.on("step_end", function)), hl.MomentError)


def test_on_without_a_moment_is_refused():
    def function(loop):
        pass

    assert isinstance(refused(lambda: hl.on(function)), hl.MomentError)


def test_on_bad_option_is_refused_when_it_is_made():
    assert str(refused(lambda: hl.on("step_end", print, evry=3))) == (
        "FunctionCallback: unknown option evry=3. Did you mean 'every'?"
    )


def test_logger_function_gets_plain_metrics_and_the_completed_step():
    seen = []
    callbacks = strict(lambda report_data, step: seen.append((report_data, step)))
    callbacks.on_step_end(loop_at(), 2, None, {"loss": Scalar(0.5), "nested": {"n": (Scalar(1),)}})
    callbacks.on_eval(loop_at(), 2, "val", {"val/loss": Scalar(0.25)})
    assert seen == [({"loss": 0.5, "nested": {"n": [1]}}, 3), ({"val/loss": 0.25}, 3)]


def test_logger_function_is_called_once_per_step_however_many_there_are():
    seen = []

    def first(report_data, step):
        seen.append(("first", step))

    def second(report_data, step):
        seen.append(("second", step))

    callbacks = strict(first, second)
    for step_idx in range(2):
        callbacks.on_step_end(loop_at(step_idx + 1), step_idx, None, {})
    assert seen == [("first", 1), ("second", 1), ("first", 2), ("second", 2)]


def test_logger_function_runs_last_and_on_rank_zero_only():
    seen = []
    callbacks = strict(lambda report_data, step: seen.append(report_data), hl.on("step_end", _adds_a_metric))
    for rank in (0, 1):
        loop = loop_at()
        loop.rank = rank
        callbacks.on_step_end(loop, 0, None, {})
    assert seen == [{"added": 1}]


def _adds_a_metric(loop, step_idx, batch, metrics):
    metrics["added"] = 1


def test_logger_function_cannot_change_the_metrics_of_others():
    metrics = {"loss": 0.5}
    strict(lambda report_data, step: report_data.clear()).on_step_end(loop_at(), 0, None, metrics)
    assert metrics == {"loss": 0.5}


def test_logger_function_goes_by_its_own_name():
    def to_monitor(report_data, step):
        pass

    callbacks = strict(to_monitor, lambda report_data, step: None, functools.partial(to_monitor))
    assert callbacks.names() == ["to_monitor", "logger_function", "logger_function_2"]


def test_logger_function_may_be_a_method_or_a_builtin_without_signature():
    class Monitor:
        def log_status(self, report_data, step, verbose=False):
            pass

    assert strict(Monitor().log_status, {}.update).names() == ["log_status", "update"]


def test_logger_function_that_is_async_runs():
    seen = []

    async def to_monitor(report_data, step):
        seen.append((report_data, step))

    callbacks = strict(to_monitor)
    callbacks.on_step_end(loop_at(), 0, None, {"loss": 0.5})
    callbacks.close()
    assert seen == [({"loss": 0.5}, 1)]


@pytest.mark.parametrize(
    "function", [lambda report_data: None, lambda a, b, c: None, lambda *, report_data, step: None, lambda: None]
)
def test_logger_function_with_other_arguments_is_refused(function):
    callbacks = strict()
    error = refused(lambda: callbacks.add(function))
    assert isinstance(error, hl.MomentError)
    assert "it is called with two arguments, (report_data, step). To call a function at one moment, use" in str(error)
    assert callbacks.names() == []


@pytest.mark.parametrize("thing", [5, dict, "text"])
def test_logger_function_made_of_something_else_is_refused(thing):
    error = refused(lambda: LoggerFunction(thing))
    assert str(error) == f"{thing!r} is not a logger function: give a function (report_data, step)."


def fire_hook(name, loop):
    """Fire the moment of a hook function once."""
    arguments = {
        "on_step_start": (3,),
        "on_step_end": (2, None, {"loss": Scalar(0.5), "current_step": "theirs"}),
        "on_train_end": (None,),
        "on_validation_batch_start": ("batch", 7),
        "on_validation_batch_end": ({"loss": Scalar(0.25)}, "batch", 7),
    }
    moment = HOOK_FUNCTIONS[name][0]
    seen = []
    callbacks = strict({name: lambda worker, report_data: seen.append((worker, report_data))})
    getattr(callbacks, moment)(loop, *arguments.get(moment, ()))
    return seen


@pytest.mark.parametrize(
    ("name", "report_data"),
    [
        ("pre_training_hook", {"total_epochs": 2, "total_steps": 20, "start_epoch": 1, "start_step": 3}),
        ("pre_training_step_hook", {"current_epoch": 1, "current_step": 3, "total_steps": 20}),
        ("post_training_step_hook", {"loss": 0.5, "current_epoch": 1, "current_step": 3, "total_steps": 20}),
        ("post_training_hook", {"final_epoch": 1, "final_step": 3, "total_steps": 20, "final_val_loss": 0.125}),
        ("pre_validation_hook", {"current_epoch": 1, "is_last_step": False}),
        ("pre_per_step_validation_hook", {"current_epoch": 1, "batch_index": 7}),
        ("post_per_step_validation_hook", {"current_epoch": 1, "batch_index": 7, "val_score": 0.25}),
        ("post_validation_hook", {"current_epoch": 1, "val_avg_loss": 0.125}),
    ],
)
def test_hook_function_gets_the_worker_and_what_the_seed_promises(name, report_data):
    loop = loop_at()
    loop.metrics["val/loss"] = Scalar(0.125)
    assert fire_hook(name, loop) == [(loop, report_data)]


def test_hook_functions_are_the_eight_of_the_seed():
    moments = {name: moment for name, (moment, _) in HOOK_FUNCTIONS.items()}
    assert moments == {
        "pre_training_hook": "on_train_start",
        "pre_training_step_hook": "on_step_start",
        "post_training_step_hook": "on_step_end",
        "post_training_hook": "on_train_end",
        "pre_validation_hook": "on_validation_start",
        "pre_per_step_validation_hook": "on_validation_batch_start",
        "post_per_step_validation_hook": "on_validation_batch_end",
        "post_validation_hook": "on_validation_end",
    }


def test_hook_function_worker_is_the_loops_worker_where_it_has_one():
    worker = object()
    assert fire_hook("pre_training_step_hook", loop_at(worker=worker))[0][0] is worker


@pytest.mark.parametrize(("step", "is_last"), [(19, False), (20, True)])
def test_hook_function_pre_validation_knows_the_last_step(step, is_last):
    assert fire_hook("pre_validation_hook", loop_at(step))[0][1]["is_last_step"] is is_last


def test_hook_function_pre_validation_without_a_known_end_is_never_last():
    loop = loop_at()
    loop.num_steps = None
    assert fire_hook("pre_validation_hook", loop)[0][1]["is_last_step"] is False


def test_hook_function_before_any_validation_reports_no_loss():
    assert fire_hook("post_training_hook", loop_at())[0][1]["final_val_loss"] is None


@pytest.mark.parametrize(
    ("outputs", "score"),
    [
        ({"loss": Scalar(0.5), "score": 1}, 0.5),
        ({"val_loss": 0.5}, 0.5),
        ({"score": 0.75}, 0.75),
        ({"logits": "many"}, None),
        (Scalar(2.0), 2.0),
        (None, None),
    ],
)
def test_hook_function_val_score_is_what_the_outputs_name(outputs, score):
    seen = []
    callbacks = strict({"post_per_step_validation_hook": lambda worker, report_data: seen.append(report_data)})
    callbacks.on_validation_batch_end(loop_at(), outputs, None, 0)
    assert seen == [{"current_epoch": 1, "batch_index": 0, "val_score": score}]


def test_hook_functions_dict_takes_one_or_several_functions_each():
    seen = []
    functions = {
        "pre_training_hook": [lambda w, r: seen.append("first"), lambda w, r: seen.append("second")],
        "post_training_hook": lambda w, r: seen.append("end"),
    }
    callbacks = strict(functions)
    callbacks.on_train_start(loop_at())
    callbacks.on_train_end(loop_at(), None)
    assert seen == ["first", "second", "end"]
    assert callbacks.names() == ["pre_training_hook", "pre_training_hook_2", "post_training_hook"]


def test_hook_functions_options_hold_for_each_of_the_dict():
    seen = []
    callbacks = strict()
    callbacks.add({"post_training_step_hook": lambda w, r: seen.append(r["current_step"])}, every=3)
    for step_idx in range(7):
        callbacks.on_step_end(loop_at(step_idx + 1), step_idx, None, {})
    assert seen == [3, 6]


def test_hook_functions_unknown_name_is_refused_with_the_closest_and_adds_none():
    callbacks = strict()
    functions = {"pre_training_hook": lambda w, r: None, "post_trainin_hook": lambda w, r: None}
    error = refused(lambda: callbacks.add(functions))
    assert isinstance(error, hl.UnknownNameError)
    assert str(error) == "'post_trainin_hook' is not a hook function. Did you mean 'post_training_hook'?"
    assert callbacks.names() == []


def test_hook_functions_with_other_arguments_are_refused():
    error = refused(lambda: HookFunction("pre_training_hook", lambda worker: None))
    assert isinstance(error, hl.MomentError)
    assert "cannot be hook function 'pre_training_hook': it is called with two arguments, (worker, report_data)." in (
        str(error)
    )


@pytest.mark.parametrize("given", [5, None, [5], "fn"])
def test_hook_functions_value_that_is_no_function_is_refused(given):
    functions = {"pre_training_hook": given}
    for make in (lambda: strict(functions), lambda: hook_functions(functions)):
        assert isinstance(refused(make), hl.MomentError)


@pytest.mark.parametrize("given_as", ["callbacks", "sinks"])
def test_logger_function_that_is_slow_is_warned_about_while_it_runs(monkeypatch, given_as):
    monkeypatch.setattr("hookline._engine.background.SLOW_SECONDS", 0.0)
    monkeypatch.setattr("hookline._engine.background.LOOK_SECONDS", 0.01)
    warned, seen = threading.Event(), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: (seen.append(record.getMessage()), warned.set())  # type: ignore[assignment, func-returns-value]

    def post(report_data, step):
        assert warned.wait(60), "nothing was said while it ran"

    monkeypatch.setattr(logging.getLogger("hookline"), "handlers", [handler])
    with hl.run(strict=True, summary=False, **{given_as: [post]}) as run:
        for _ in run.steps(1):
            run.log(loss=1.0)
    assert "post has been running for 0 s at step 1." in seen[0]
    wait_until(lambda: all(thread.name != "hookline-slow-calls" for thread in threading.enumerate()))
