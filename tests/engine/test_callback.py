"""The catalogue of moments."""

import inspect
import re

import hookline as hl


def test_catalogue_pseudocode_names_every_moment_and_no_other():
    named = set(re.findall(r"\bon_\w+", inspect.getdoc(hl.Callback)))
    assert named == set(hl.MOMENTS)


def test_catalogue_every_moment_is_documented_typed_and_positional():
    for name, moment in hl.MOMENTS.items():
        parameters = list(inspect.signature(getattr(hl.Callback, name)).parameters.values())[1:]
        assert moment.doc, name
        assert all(parameter.annotation is not parameter.empty for parameter in parameters), name
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY] == list(moment.arguments), name


def test_catalogue_arguments_are_those_of_the_design():
    signatures = {name: moment.signature() for name, moment in hl.MOMENTS.items()}
    assert signatures["on_step_end"] == "on_step_end(loop, step_idx, batch, metrics)"
    assert signatures["on_benchmark_eval"] == "on_benchmark_eval(ctx, eval_result, predictions, *, step=None)"
    assert {moment.subject for moment in hl.MOMENTS.values()} == {"loop", "ctx"}


def test_catalogue_moments_with_a_cadence_are_those_that_repeat():
    repeating = {name for name, moment in hl.MOMENTS.items() if moment.repeating}
    assert repeating == {
        *("on_step_start", "on_step_end", "on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step"),
        *("on_rollout_start", "on_rollout_end", "on_validation_batch_start", "on_validation_batch_end", "on_log"),
    }


def test_callback_defaults_do_nothing():
    callback = hl.Callback()
    results = [getattr(callback, name)(*[None] * len(moment.arguments)) for name, moment in hl.MOMENTS.items()]
    assert results == [None] * len(hl.MOMENTS)
