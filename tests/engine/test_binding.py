"""Binding: the moments of a subscriber, their arguments, and refusals when it is added."""

import functools
import inspect

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hookline as hl
from hookline._engine.binding import bind, bind_function
from hookline.testing import RecordingCallback

STEP_END = hl.MOMENTS["on_step_end"]
BENCHMARK_EVAL = hl.MOMENTS["on_benchmark_eval"]


def accepted(function, moment=STEP_END):
    return bind_function(function, moment, who="Tested").arguments


def refusal(subscriber):
    """The message with which a collection refuses a subscriber."""
    callbacks = hl.CallbackCollection(strict=True)
    with pytest.raises(hl.MomentError) as caught:
        callbacks.add(subscriber)
    assert callbacks.names() == []
    return str(caught.value)


def test_bind_finds_the_moments_that_are_overridden():
    class Two(hl.Callback):
        def on_train_start(self, loop):
            pass

        def on_eval(self, loop, step_idx):
            pass

    bindings = bind(Two(), hl.MOMENTS)
    found = {name: binding.arguments for name, binding in bindings.items()}
    assert found == {"on_train_start": ("loop",), "on_eval": ("loop", "step_idx")}


def test_bind_callback_without_moments_listens_to_nothing():
    assert bind(hl.Callback(), hl.MOMENTS) == {}


def test_bind_catalogue_signatures_fit_themselves():
    assert list(bind(RecordingCallback(), hl.MOMENTS)) == list(hl.MOMENTS)
    for moment in hl.MOMENTS.values():
        assert accepted(getattr(hl.Callback(), moment.name), moment) == moment.everything


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda: None, ()),
        (lambda trainer: None, ("loop",)),
        (lambda state, index: None, ("loop", "step_idx")),
        (lambda loop, step_idx, batch, metrics: None, ("loop", "step_idx", "batch", "metrics")),
        (lambda loop, step_idx, batch, metrics, extra=1: None, ("loop", "step_idx", "batch", "metrics")),
        (lambda *args: None, ("loop", "step_idx", "batch", "metrics")),
        (lambda loop, *rest: None, ("loop", "step_idx", "batch", "metrics")),
        (lambda loop, **options: None, ("loop",)),
        (lambda loop, /, step_idx=0, *, verbose=False: None, ("loop", "step_idx")),
    ],
)
def test_bind_function_settles_the_arguments(function, arguments):
    assert accepted(function) == arguments


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (lambda ctx, result: None, ("ctx", "eval_result")),
        (lambda ctx, result, rows, *, step=None: None, ("ctx", "eval_result", "predictions", "step=step")),
        (lambda ctx, result, rows, step: None, ("ctx", "eval_result", "predictions", "step=step")),
        (lambda ctx, *, step: None, ("ctx", "step=step")),
        (lambda ctx, **keywords: None, ("ctx", "step=step")),
        (lambda *args, step, **keywords: None, ("ctx", "eval_result", "predictions", "step=step")),
    ],
)
def test_bind_function_passes_the_keyword_where_it_is_wanted(function, arguments):
    assert accepted(function, BENCHMARK_EVAL) == arguments


@pytest.mark.parametrize(
    "function",
    [
        lambda loop, metrics: None,
        lambda loop, batch, step_idx, metrics: None,
        lambda step_idx: None,
        lambda loop, step_idx, batch, metrics, optimizer: None,
        lambda loop, *, optimizer: None,
    ],
)
def test_bind_function_that_cannot_be_called_or_gets_the_wrong_argument_is_refused(function):
    with pytest.raises(hl.MomentError, match="cannot be called at the moment on_step_end"):
        accepted(function)


@pytest.mark.parametrize("function", [lambda loop, *, metrics: None, lambda loop, *, metrics=None: None])
def test_bind_function_argument_that_is_keyword_only_is_passed_by_its_name(function):
    assert accepted(function) == ("loop", "metrics=metrics")


NAMES = [*BENCHMARK_EVAL.arguments, *BENCHMARK_EVAL.keywords, "x", "y"]


@st.composite
def parameters(draw):
    """Any list of parameters that Python allows, with names of the moment's arguments among others."""
    names = draw(st.permutations(NAMES))
    sizes = [draw(st.integers(0, limit)) for limit in (2, 3, 1, 1, 1)]  # by kind: positional-only, ..., **keywords
    kinds = [kind for kind, size in zip(inspect._ParameterKind, sizes, strict=True) for _ in range(size)]
    required = draw(st.integers(0, 5))
    listed = []
    for place, (name, kind) in enumerate(zip(names, kinds, strict=False)):
        variadic = kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        default = inspect.Parameter.empty if variadic or place < required else "the default"
        listed.append(inspect.Parameter(name, kind, default=default))
    return inspect.Signature(listed)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(parameters())
def test_bind_any_signature_is_refused_or_can_be_called_with_the_right_arguments(signature):
    namespace = {}
    exec(f"def function{signature}: return locals()", namespace)
    try:
        arguments = accepted(namespace["function"], BENCHMARK_EVAL)
    except hl.MomentError:
        return
    values = {name: f"the {name}" for name in (*BENCHMARK_EVAL.arguments, *BENCHMARK_EVAL.keywords)}
    received = eval(f"function({', '.join(arguments)})", namespace, values)
    under_a_right_name = {name: value for name, value in received.items() if name in values and isinstance(value, str)}
    assert under_a_right_name == {name: values[name] for name in under_a_right_name}


def test_bind_shows_both_signatures_of_one_that_cannot_be_called():
    class Greedy(hl.Callback):
        def on_train_start(self, loop, model, optimizer):
            pass

    assert refusal(Greedy()) == (
        "Greedy: on_train_start(loop, model, optimizer) cannot be called at the moment on_train_start.\n"
        "    it is defined as    on_train_start(loop, model, optimizer)\n"
        "    it is called as     on_train_start(loop)\n"
        "Trailing arguments may be left off; their order may not change."
    )


def test_bind_argument_names_in_the_wrong_order_are_refused():
    class Backwards(hl.Callback):
        def on_step_end(self, loop, metrics):
            pass

    message = refusal(Backwards())
    assert "it is defined as    on_step_end(loop, metrics)" in message
    assert "it is called as     on_step_end(loop, step_idx, batch, metrics)" in message


def test_bind_keyword_of_a_moment_is_shown_in_its_signature():
    class Greedy(hl.Callback):
        def on_benchmark_eval(self, ctx, a, b, c):
            pass

    assert "it is called as     on_benchmark_eval(ctx, eval_result, predictions, *, step=None)" in refusal(Greedy())


@pytest.mark.parametrize(
    ("misspelt", "closest"),
    [
        ("on_step_ends", "on_step_end"),
        ("on_trian_epoch_start", "on_train_epoch_start"),
        ("on_validaton_end", "on_validation_end"),
    ],
)
def test_bind_misspelt_moment_is_refused_with_the_closest(misspelt, closest):
    subscriber = type("Misspelt", (hl.Callback,), {misspelt: lambda self, loop: None})()
    assert refusal(subscriber) == (
        f"Misspelt.{misspelt} is not a moment. Did you mean {closest!r}? "
        "Something of your own needs another name, e.g. with a leading underscore."
    )


def test_bind_misspelt_moment_with_nothing_close_lists_them_all():
    subscriber = type("Strange", (hl.Callback,), {"on_zzz": lambda self: None})()
    assert "Known: on_before_optimizer_step, on_benchmark_eval, on_checkpoint," in refusal(subscriber)


@pytest.mark.parametrize("wrap", [staticmethod, classmethod])
def test_bind_misspelt_static_or_class_method_is_refused(wrap):
    subscriber = type("Misspelt", (hl.Callback,), {"on_step_ends": wrap(lambda *args: None)})()
    assert "Misspelt.on_step_ends is not a moment." in refusal(subscriber)


def test_bind_misspelt_moment_on_the_instance_is_refused():
    subscriber = hl.Callback()
    subscriber.on_step_ends = lambda loop: None  # type: ignore[attr-defined]
    assert "on_step_ends is not a moment. Did you mean 'on_step_end'?" in refusal(subscriber)


def test_bind_misspelt_moment_of_a_base_class_is_refused():
    class Mixin:
        def on_epoch_ending(self, loop):
            pass

    class Mixed(Mixin, hl.Callback):
        pass

    assert refusal(Mixed()).startswith("Mixed.on_epoch_ending is not a moment.")


def test_bind_attribute_that_is_not_callable_is_left_alone():
    class Flagged(hl.Callback):
        on_gpu = True

        def _on_helper(self):
            pass

    assert bind(Flagged(), hl.MOMENTS) == {}


def test_bind_moment_that_is_not_a_method_is_refused():
    class Flagged(hl.Callback):
        on_step_end = True  # type: ignore[assignment]

    message = refusal(Flagged())
    assert message == "Flagged.on_step_end is True; a moment is a method: on_step_end(loop, step_idx, batch, metrics)"


def test_bind_inherited_and_mixed_in_moments_are_found():
    class Mixin:
        def on_train_start(self, loop):
            pass

    class Parent(hl.Callback):
        def on_train_end(self, loop):
            pass

    class Child(Mixin, Parent):
        pass

    assert list(bind(Child(), hl.MOMENTS)) == ["on_train_start", "on_train_end"]


def test_bind_function_set_on_the_instance_is_found():
    subscriber = hl.Callback()
    subscriber.on_train_start = lambda loop: None
    assert list(bind(subscriber, hl.MOMENTS)) == ["on_train_start"]


def test_bind_static_and_class_methods_can_be_moments():
    seen = []

    class Unbound(hl.Callback):
        @staticmethod
        def on_train_start(loop):
            seen.append("static")

        @classmethod
        def on_train_end(cls, loop):
            seen.append(cls.__name__)

    callbacks = hl.CallbackCollection([Unbound()], strict=True)
    callbacks.on_train_start(None)
    callbacks.on_train_end(None, None)
    assert seen == ["static", "Unbound"]


def test_bind_wrapped_method_is_bound_by_the_signature_it_wraps():
    def logged(method):
        @functools.wraps(method)
        def wrapper(self, *args):
            return method(self, *args)

        return wrapper

    class Wrapped(hl.Callback):
        @logged
        def on_step_end(self, loop, step_idx):
            pass

    assert bind(Wrapped(), hl.MOMENTS)["on_step_end"].arguments == ("loop", "step_idx")


def test_bind_builtin_without_a_signature_gets_everything():
    with pytest.raises(ValueError, match="no signature"):
        inspect.signature(dict.update)
    assert accepted({}.update, hl.MOMENTS["on_train_start"]) == ("loop",)


def test_bind_async_is_noticed_through_partials_and_methods():
    async def coroutine(loop, extra=None):
        pass

    flags = [
        bind_function(f, STEP_END, who="Tested").is_async for f in (coroutine, functools.partial(coroutine), print)
    ]
    assert flags == [True, True, False]


def test_bind_async_callable_object_is_noticed():
    class Caller:
        async def __call__(self, loop):
            pass

    assert bind_function(Caller(), STEP_END, who="Tested").is_async is True
