"""Ignite's own engines, beyond what the contract suite compares."""

import signal
import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("ignite")

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
    from ignite.metrics import Loss, RunningAverage

from host_runs import At, end_of, values
from hosts.regression import HELD_OUT, TRAIN, line, loader, optimizer_of

from hookline._engine.errors import OptionError
from hookline.integrations.ignite import attach
from hookline.testing import RecordingCallback

CRITERION = torch.nn.functional.mse_loss


def parts(accumulation=1):
    model = line()
    optimizer = optimizer_of(model.parameters())
    trainer = create_supervised_trainer(model, optimizer, CRITERION, gradient_accumulation_steps=accumulation)
    return model, optimizer, trainer


def test_training_is_the_same_with_and_without_hookline(options):
    plain, _, alone = parts()
    alone.run(loader(TRAIN), max_epochs=2)
    model, optimizer, trainer = parts()
    attach(trainer, ["ema", "gradient_monitor"], model=model, optimizer=optimizer, **options)
    trainer.run(loader(TRAIN), max_epochs=2)
    assert torch.equal(model.weight, plain.weight)
    assert trainer.state.iteration == alone.state.iteration == 8


def test_accumulated_iterations_make_a_step(options):
    model, optimizer, trainer = parts(accumulation=2)
    seen = RecordingCallback()
    attached = attach(trainer, [seen], model=model, optimizer=optimizer, accumulation=2, **options)
    trainer.run(loader(TRAIN), max_epochs=2)
    assert [step for step, _ in values(attached.loop, "loss")] == [1, 2, 3, 4]
    assert (attached.loop.num_steps, seen.names().count("on_train_batch_end")) == (4, 8)
    assert seen.names().count("on_before_optimizer_step") == 4


def test_output_mapping_and_metrics_of_the_engine_are_in_the_row(options):
    def update(engine, batch):
        return {"loss": 2.0 * engine.state.iteration, "rate": 0.5}

    trainer = Engine(update)
    RunningAverage(output_transform=lambda output: output["loss"], alpha=0.5).attach(trainer, "smooth")
    attached = attach(trainer, **options)
    trainer.run([1, 2], max_epochs=1)
    assert [row.metrics for row in attached.loop.history] == [
        {"loss": 2.0, "rate": 0.5, "smooth": 2.0},
        {"loss": 4.0, "rate": 0.5, "smooth": 3.0},
    ]


def test_output_transform_names_the_metrics_of_other_outputs(options):
    trainer = Engine(lambda engine, batch: (None, batch / 2))
    attached = attach(trainer, output_transform=lambda output: {"loss": output[1]}, **options)
    trainer.run([1, 2], max_epochs=1)
    assert values(attached.loop, "loss") == [(1, 0.5), (2, 1.0)]


def test_several_evaluators_are_evaluations_by_their_names(options):
    model, optimizer, trainer = parts()
    easy, hard = (create_supervised_evaluator(model, {"loss": Loss(CRITERION)}) for _ in "ab")
    attached = attach(trainer, model=model, optimizer=optimizer, evaluators={"easy": easy, "hard": hard}, **options)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: [each.run(loader(HELD_OUT)) for each in (easy, hard)])
    trainer.run(loader(TRAIN), max_epochs=2)
    assert [step for step, _ in values(attached.loop, "easy/loss")] == [4, 8]
    assert values(attached.loop, "hard/loss") == values(attached.loop, "easy/loss")


def test_evaluation_before_the_training_and_at_its_end_belongs_to_the_run(options):
    model, optimizer, trainer = parts()
    evaluator = create_supervised_evaluator(model, {"loss": Loss(CRITERION)})
    for event in (Events.STARTED, Events.COMPLETED):
        trainer.add_event_handler(event, lambda: evaluator.run(loader(HELD_OUT)))
    seen = RecordingCallback()
    attached = attach(trainer, [seen], model=model, optimizer=optimizer, evaluators=evaluator, **options)
    trainer.run(loader(TRAIN), max_epochs=1)
    assert [step for step, _ in values(attached.loop, "val/loss")] == [0, 4]
    assert (seen.names()[0], seen.names()[-2:]) == ("on_train_start", ["on_train_epoch_end", "on_train_end"])


def test_evaluation_without_a_training_is_a_run_of_its_own(options):
    model, optimizer, trainer = parts()
    evaluator = create_supervised_evaluator(model, {"mse": Loss(CRITERION)})
    seen = RecordingCallback()
    attached = attach(trainer, [seen], model=model, optimizer=optimizer, evaluators={"test": evaluator}, **options)
    evaluator.run(loader(HELD_OUT))
    assert [step for step, _ in values(attached.loop, "test/mse")] == [0]
    assert end_of(attached.loop)[0] == "finished"
    assert "on_train_start" not in seen.names()


def test_evaluator_that_runs_inside_of_a_step_is_of_the_updated_weights(options):
    model, optimizer, trainer = parts()
    evaluator = create_supervised_evaluator(model, {"loss": Loss(CRITERION)})
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=3), lambda: evaluator.run(loader(HELD_OUT)))
    attached = attach(trainer, model=model, optimizer=optimizer, evaluators=evaluator, **options)
    trainer.run(loader(TRAIN), max_epochs=1)
    assert [step for step, _ in values(attached.loop, "val/loss")] == [3]
    assert [step for step, _ in values(attached.loop, "loss")] == [1, 2, 3, 4]


def test_metrics_that_cannot_be_recorded_are_left_out_with_a_warning(options, caplog):
    model, optimizer, trainer = parts()
    evaluator = create_supervised_evaluator(model, {"loss": Loss(CRITERION)})

    @evaluator.on(Events.EPOCH_COMPLETED)
    def add(engine):
        engine.state.metrics["object"] = object()

    attached = attach(trainer, model=model, optimizer=optimizer, evaluators=evaluator, **options)
    evaluator.run(loader(HELD_OUT))
    assert [step for step, _ in values(attached.loop, "val/loss")] == [0]
    assert [record.getMessage() for record in caplog.records if "val/object" in record.getMessage()] != []


def test_trainer_that_runs_on_continues_its_run(options):
    model, optimizer, trainer = parts()
    attached = attach(trainer, model=model, optimizer=optimizer, **options)
    trainer.run(loader(TRAIN), max_epochs=1)
    first = attached.loop.dir
    trainer.run(loader(TRAIN), max_epochs=2)
    assert attached.loop.dir == first
    assert [step for step, _ in values(attached.loop, "loss")] == [*range(1, 9)]
    trainer.state.epoch = trainer.state.iteration = 0
    trainer.run(loader(TRAIN), max_epochs=1)
    assert attached.loop.dir != first


def test_interrupted_trainer_continues_in_the_middle_of_an_epoch(options):
    model, optimizer, trainer = parts()
    seen = RecordingCallback()
    attached = attach(trainer, [seen], model=model, optimizer=optimizer, **options)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(once=2), trainer.interrupt)
    trainer.run(loader(TRAIN), max_epochs=1)
    trainer.run(loader(TRAIN), max_epochs=1)
    assert [step for step, _ in values(attached.loop, "loss")] == [1, 2, 3, 4]
    assert [event.arguments[1] for event in seen.events if event.moment == "on_train_batch_start"] == [0, 1, 2, 3]


def test_resume_loads_what_was_saved(options):
    whole, _, straight = parts()
    straight.run(loader(TRAIN), max_epochs=2)
    model, optimizer, trainer = parts()
    leave = At(4, lambda loop: (loop.save_checkpoint(), loop.request_stop("for now")))
    first = attach(trainer, [leave], model=model, optimizer=optimizer, **options)
    trainer.run(loader(TRAIN), max_epochs=2)
    (row,) = first.loop.checkpoints
    again, optimizer, resumed = parts()
    second = attach(resumed, model=again, optimizer=optimizer, resume=row.path, **options)
    assert resumed.state.iteration == 4
    resumed.run(loader(TRAIN), max_epochs=2)
    assert (second.loop.dir, second.loop.step) == (first.loop.dir, 8)
    assert torch.equal(again.weight, whole.weight)


def test_to_save_holds_other_objects(options):
    model, optimizer, trainer = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    save = At(1, lambda loop: loop.save_checkpoint())
    saved = {"net": model, "schedule": schedule}
    attached = attach(trainer, [save], model=model, optimizer=optimizer, to_save=saved, **options)
    trainer.run(loader(TRAIN), max_epochs=1)
    (row,) = attached.loop.checkpoints
    assert set(torch.load(row.path / "ignite.pt")) == {"net", "schedule", "trainer"}


@pytest.mark.parametrize(("where", "status"), [("update", "finished"), ("epoch", "failed")])
def test_error_that_a_handler_handles_ends_the_run_where_it_ends_the_training(options, where, status):
    trainer, handled = Engine(lambda engine, batch: 1 / (where != "update")), []
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda: 1 / (where != "epoch"))
    trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda engine, error: handled.append(error))
    attached = attach(trainer, **options)
    trainer.run([1], max_epochs=1)
    assert (len(handled), end_of(attached.loop)[0]) == (1, status)


def test_error_of_the_update_ends_the_run_as_failed_and_passes_on(options):
    trainer = Engine(lambda engine, batch: 1 / 0)
    attached = attach(trainer, **options)
    with pytest.raises(ZeroDivisionError):
        trainer.run([1], max_epochs=1)
    assert end_of(attached.loop) == ["failed", "ZeroDivisionError: division by zero"]


def test_signal_stops_after_the_step(options):
    model, optimizer, trainer = parts()
    stop = At(2, lambda loop: signal.raise_signal(signal.SIGINT))
    attached = attach(trainer, [stop], model=model, optimizer=optimizer, **options)
    trainer.run(loader(TRAIN), max_epochs=2)
    assert (trainer.state.iteration, end_of(attached.loop)) == (2, ["stopped", "SIGINT"])


def test_detach_leaves_the_engines_as_they_were(options):
    model, optimizer, trainer = parts()
    seen = RecordingCallback()
    evaluator = create_supervised_evaluator(model)
    attached = attach(trainer, [seen], model=model, optimizer=optimizer, evaluators=evaluator, **options)
    attached.detach()
    trainer.run(loader(TRAIN), max_epochs=1)
    evaluator.run(loader(HELD_OUT))
    assert (seen.events, "run" in vars(trainer), attached.loop.dir) == ([], False, None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainer": object()}, "give an ignite.engine.Engine"),
        ({"evaluators": {"val": len}}, r"evaluators\['val'\]"),
        ({"accumulation": 2}, "accumulation=2 without optimizer="),
        ({"accumulation": 0}, "accumulation=0"),
    ],
)
def test_attach_refuses_bad_arguments(given, message):
    with pytest.raises(OptionError, match=message):
        attach(**{"trainer": Engine(lambda engine, batch: batch), "root": None, **given})


def test_validation_that_cannot_be_made_is_warned_of_once(options, caplog):
    model, optimizer, trainer = parts()
    request = [At(step, lambda loop: loop.request_validation()) for step in (1, 2)]
    named = [each.configure(name=f"at-{each.at}") for each in request]
    attach(trainer, named, model=model, optimizer=optimizer, **options)
    trainer.run(loader(TRAIN), max_epochs=1)
    assert caplog.text.count("attach() was given no validate=") == 1
