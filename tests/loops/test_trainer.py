"""Trainer in one process: its moments, its results, its validations, and what callbacks can do in it."""

import logging
import math
from types import SimpleNamespace

import pytest

import hookline as hl
from hookline._engine.errors import NonFiniteError, OptionError
from hookline._engine.state import LoopArtifacts, ManifestRow
from hookline._record.records import Event, Metrics, Status
from hookline.callbacks import (
    EMA,
    Alert,
    CheckpointCallback,
    CsvMetrics,
    EarlyStoppingCallback,
    GradientMonitor,
    Heartbeat,
    LearningRateMonitor,
    LoggerCallback,
    NaNGuard,
    NoProgress,
    PrintProgress,
    ProgressBar,
    ProgressWatchdog,
    ResourceMonitor,
    SampleLogger,
    ThroughputMonitor,
    Timer,
)
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

CONFIG = {"device": "cpu", "batch_size": 4, "output_dir": None, "summary": False, "strict": True}
VALIDATION = ["validation_start", "validation_epoch_start"]
VALIDATION_END = ["log", "validation_epoch_end", "validation_end", "eval"]


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def samples(count=8, seed=1):
    inputs = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def linear():
    torch.manual_seed(7)
    return torch.nn.Linear(3, 1)


def dropping_out():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))


def make(model=None, train=None, val=None, *, kind=hl.Trainer, loss=functional.mse_loss, callbacks=None, **settings):
    """A Trainer with these settings; those that are no settings go to the Trainer itself."""
    fields = set(hl.TrainerConfig.__struct_fields__) - {"optimizer"}
    own = {name: settings.pop(name) for name in list(settings) if name not in fields}
    config = hl.TrainerConfig(**{**CONFIG, **settings})
    return kind(model or linear(), train or samples(), val, config=config, loss=loss, callbacks=callbacks, **own)


def losses(trainer):
    return [row.metrics["loss"] for row in trainer.history if "loss" in row.metrics]


def steps_with(trainer, name):
    return [row.step for row in trainer.history if name in row.metrics]


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def by_hand(model, batches, optimizer, *, epochs=1, scheduler=None, clip=None, seed=0):
    """A plain training loop, to compare with."""
    torch.manual_seed(seed)
    seen = []
    for _ in range(epochs):
        for inputs, targets in batches:
            loss = functional.mse_loss(model(inputs), targets)
            loss.backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
            seen.append(loss.item())
    return seen


# The moments


def test_trainer_fires_every_moment_once_and_in_order():
    recording = RecordingCallback()
    settings = {"epochs": 1, "batch_size": 2, "accumulation": 2, "validate_every_steps": 2, "output_dir": "runs"}
    trainer = make(train=samples(6), val=samples(2), callbacks=[recording], save_at_end=False, **settings)
    trainer.callbacks.add(hl.on("step_end", lambda loop: loop.request_checkpoint(), every=2))
    trainer.fit()
    batch = ["train_batch_start", "train_batch_end"]
    end_of_step = ["before_optimizer_step", "step_end", "log"]
    validation = [*VALIDATION, "validation_batch_start", "validation_batch_end", *VALIDATION_END]
    expected = ["train_start", "train_epoch_start"]
    expected += ["step_start", *batch, *batch, *end_of_step]
    expected += ["step_start", *batch, *end_of_step, *validation, "checkpoint"]
    expected += ["train_epoch_end", "train_end"]
    assert recording.names() == [f"on_{name}" for name in expected]


def test_trainer_moments_have_the_documented_arguments():
    recording = RecordingCallback()
    data = samples(6)
    settings = {"epochs": 1, "batch_size": 2, "accumulation": 2, "shuffle": False, "validate_at_end": False}
    trainer = make(train=data, callbacks=[recording], gradient_clip_norm=9.0, **settings)
    trainer.fit()
    by_name = {}
    for event in recording.events:
        by_name.setdefault(event.moment, []).append(event.arguments)
    assert by_name["on_step_start"] == [(0,), (1,)]
    assert [index for _, index in by_name["on_train_batch_start"]] == [0, 1, 2]
    for number, (outputs, batch, index) in enumerate(by_name["on_train_batch_end"]):
        assert index == number
        assert torch.equal(batch[0], data.tensors[0][2 * number : 2 * number + 2])
        assert list(outputs) == ["loss"]
        assert not outputs["loss"].requires_grad
    assert by_name["on_before_optimizer_step"] == [(trainer.optimizer,)] * 2
    assert [(index, list(metrics)) for index, _, metrics in by_name["on_step_end"]] == [
        (0, ["loss", "learning_rate", "grad_norm"]),
        (1, ["loss", "learning_rate", "grad_norm"]),
    ]
    assert torch.equal(by_name["on_step_end"][0][1][0], data.tensors[0][2:4])
    assert by_name["on_log"] == [(index + 1, metrics) for index, _, metrics in by_name["on_step_end"]]
    (artifacts,) = by_name["on_train_end"][0]
    assert isinstance(artifacts, LoopArtifacts)
    assert (artifacts.step, artifacts.stop_reason) == (2, None)


def test_trainer_validation_moments_have_the_documented_arguments():
    recording = RecordingCallback()
    data = samples(3)
    trainer = make(val=data, callbacks=[recording], epochs=1, batch_size=2)
    trainer.fit()
    events = [event for event in recording.events if "validation_batch" in event.moment or event.moment == "on_eval"]
    first, last = data.tensors[0][:2], data.tensors[0][2:]
    assert [event.moment for event in events] == [
        *["on_validation_batch_start", "on_validation_batch_end"] * 2,
        "on_eval",
    ]
    assert torch.equal(events[0].arguments[0][0], first)
    assert torch.equal(events[3].arguments[1][0], last)
    assert [events[i].arguments[-1] for i in range(4)] == [0, 0, 1, 1]
    assert list(events[1].arguments[0]) == ["loss", "predictions"]
    assert events[4].arguments == (3, "val", {"val/loss": trainer.get_metric("val_loss")})


def test_trainer_moments_of_checkpoints_have_a_row():
    recording = RecordingCallback()
    trainer = make(epochs=1, output_dir="runs", callbacks=[recording])
    trainer.fit()
    (row,) = [event.arguments[0] for event in recording.events if event.moment == "on_checkpoint"]
    assert isinstance(row, ManifestRow)
    assert (row.step, row.kind, row.path) == (2, "end", trainer.dir / "checkpoints" / "step-00000002")


def test_trainer_counters_at_each_moment():
    seen = []

    class Look(hl.Callback):
        def note(self, loop, moment):
            seen.append((moment, loop.step, loop.epoch, loop.in_step))

        def on_train_start(self, loop):
            self.note(loop, "start")
            seen.append((loop.num_steps, loop.total_steps, loop.num_epochs))

        def on_train_epoch_start(self, loop):
            self.note(loop, "epoch")

        def on_step_start(self, loop):
            self.note(loop, "step")

        def on_before_optimizer_step(self, loop):
            self.note(loop, "before")

        def on_step_end(self, loop):
            self.note(loop, "end")

        def on_log(self, loop):
            self.note(loop, "log")

        def on_train_epoch_end(self, loop):
            self.note(loop, "epoch end")

    make(train=samples(4), epochs=2, callbacks=[Look()]).fit()

    def epoch(number):
        before, after = number, number + 1
        within = [("step", before, number, True), ("before", before, number, True)]
        within += [("end", after, number, False), ("log", after, number, False)]
        return [("epoch", before, number, False), *within, ("epoch end", after, number, False)]

    assert seen == [("start", 0, 0, False), (2, 2, 2), *epoch(0), *epoch(1)]


def test_trainer_metrics_of_the_step_are_known_when_it_ends():
    seen = []
    look = hl.on(
        "step_end", lambda loop, index, batch, metrics: seen.append((loop.get_metric("loss"), metrics["loss"]))
    )
    make(epochs=1, callbacks=[look]).fit()
    assert len(seen) == 2
    assert all(known == own for known, own in seen)


def test_trainer_what_is_logged_or_returned_at_the_end_of_a_step_stands_in_its_row():
    class Derive(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            loop.log(doubled=metrics["loss"] * 2)
            return {"index": step_idx}

    trainer = make(epochs=1, callbacks=[Derive()])
    trainer.fit()
    assert [row.step for row in trainer.history] == [1, 2]
    assert [row.metrics["derive/index"] for row in trainer.history] == [0, 1]
    assert all(row.metrics["doubled"] == row.metrics["loss"] * 2 for row in trainer.history)


def test_trainer_samples_logged_at_the_end_of_a_step_belong_to_that_step():
    trainer = make(epochs=1, callbacks=[hl.on("step_end", lambda loop: loop.log_samples([{"prompt": "a"}]))])
    trainer.fit()
    assert [row["step"] for row in trainer.samples] == [1, 2]


def test_trainer_validation_inside_the_end_of_a_step_belongs_to_that_step():
    evaluated = []
    trainer = make(val=samples(), epochs=1, validate_at_end=False, validate_every_epochs=9)
    trainer.callbacks.add(hl.on("step_end", lambda loop: (loop.validate("probe"), None)[1]))
    trainer.callbacks.add(hl.on("eval", lambda loop, index, name: evaluated.append((index, name))))
    trainer.fit()
    assert evaluated == [(0, "probe"), (1, "probe")]
    assert steps_with(trainer, "probe/loss") == [1, 2]


# How long


@pytest.mark.parametrize(
    ("settings", "steps", "epochs"),
    [
        ({"epochs": 3}, 6, 3),
        ({"max_steps": 3}, 3, 2),
        ({"max_steps": 4}, 4, 2),
        ({"epochs": 5, "max_steps": 3}, 3, 2),
        ({"epochs": 1, "max_steps": 30}, 2, 1),
        ({"epochs": 2, "accumulation": 2}, 2, 2),
        ({"epochs": 2, "accumulation": 3}, 2, 2),
        ({"epochs": 2, "batch_size": 3, "accumulation": 2}, 4, 2),
        ({"epochs": 1, "batch_size": 100}, 1, 1),
    ],
)
def test_trainer_makes_as_many_steps_and_epochs_as_planned(settings, steps, epochs):
    recording = RecordingCallback()
    trainer = make(callbacks=[recording], **settings)
    assert (trainer.num_steps, trainer.num_epochs) == (steps, epochs)
    artifacts = trainer.fit()
    assert (artifacts.step, trainer.state, trainer.epoch) == (steps, "completed", epochs - 1)
    names = recording.names()
    assert [names.count(f"on_{name}") for name in ("step_end", "train_epoch_start", "train_epoch_end")] == [
        steps,
        epochs,
        epochs,
    ]


def test_trainer_batches_are_counted_again_in_each_epoch():
    recording = RecordingCallback()
    make(epochs=2, callbacks=[recording]).fit()
    starts = [event.arguments[1] for event in recording.events if event.moment == "on_train_batch_start"]
    assert starts == [0, 1, 0, 1]


# Results


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)),
        ("adam", lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.01, weight_decay=0.1)),
    ],
)
def test_trainer_gives_the_weights_of_a_plain_loop_bit_for_bit(name, optimizer):
    model, reference = dropping_out(), dropping_out()
    config = {**CONFIG, "optimizer": name, "learning_rate": 0.01, "weight_decay": 0.1, "epochs": 3, "seed": 5}
    trainer = hl.Trainer(model, samples(10), config=hl.TrainerConfig(**config), loss=functional.mse_loss)
    trainer.fit()
    loader = DataLoader(samples(10), batch_size=4, shuffle=True)
    expected = by_hand(reference, loader, optimizer(reference.parameters()), epochs=3, seed=5)
    assert losses(trainer) == expected
    assert same(weights(model), weights(reference))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_trainer_schedule_gives_the_weights_of_a_plain_loop_bit_for_bit(schedule):
    def share(step):
        if step < 2:
            return (step + 1) / 3
        left = 1 - (step - 2) / 4
        return {"constant": 1.0, "linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2}[schedule]

    model, reference = dropping_out(), dropping_out()
    trainer = make(
        model, epochs=3, learning_rate=0.1, schedule=schedule, warmup_steps=2, gradient_clip_norm=0.5, seed=1
    )
    trainer.fit()
    optimizer = torch.optim.AdamW(reference.parameters(), lr=0.1, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    loader = DataLoader(samples(), batch_size=4, shuffle=True)
    expected = by_hand(reference, loader, optimizer, epochs=3, scheduler=scheduler, clip=0.5, seed=1)
    assert losses(trainer) == expected
    assert same(weights(model), weights(reference))
    assert [row.metrics["learning_rate"] for row in trainer.history] == [0.1 * share(step) for step in range(6)]


def test_trainer_clips_and_records_the_norm_before_clipping():
    norms, model = [], linear()

    def look(loop, optimizer):
        gradients = [parameter.grad for group in optimizer.param_groups for parameter in group["params"]]
        norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())

    before = weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    callbacks = [hl.on("before_optimizer_step", look)]
    trainer = make(model, max_steps=1, gradient_clip_norm=0.01, callbacks=callbacks, optimizer=optimizer)
    trainer.fit()
    assert norms == pytest.approx([row.metrics["grad_norm"] for row in trainer.history if "loss" in row.metrics])
    moved = torch.cat([(old - new).flatten() for old, new in zip(before, weights(model), strict=True)])
    assert norms[0] > 0.1
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_trainer_accumulation_has_the_gradient_and_the_loss_of_one_big_batch():
    def trained(**settings):
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = make(model, samples(8), epochs=2, shuffle=False, optimizer=optimizer, **settings)
        trainer.fit()
        return losses(trainer), weights(model)

    (small_losses, small), (big_losses, big) = trained(batch_size=2, accumulation=4), trained(batch_size=8)
    assert small_losses == pytest.approx(big_losses, rel=1e-6)
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(small, big, strict=True))


def test_trainer_accumulation_last_window_is_averaged_over_the_batches_it_has():
    model, reference = linear(), linear()
    trainer = make(
        model,
        samples(10),
        epochs=1,
        batch_size=2,
        accumulation=3,
        shuffle=False,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    )
    trainer.fit()
    inputs, targets = samples(10).tensors
    windows = [(inputs[:6], targets[:6]), (inputs[6:], targets[6:])]
    expected = by_hand(reference, windows, torch.optim.SGD(reference.parameters(), lr=0.1))
    assert losses(trainer) == pytest.approx(expected, rel=1e-6)
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(weights(model), weights(reference), strict=True))


def test_trainer_accumulation_averages_outputs_and_adds_up_counts():
    values = iter([1.0, 2.0, 6.0])

    def step(model, batch):
        outputs = {"loss": functional.mse_loss(model(batch[0]), batch[1]), "score": next(values), "tokens": 5}
        return outputs | {"samples": torch.tensor(len(batch[0]))}

    trainer = make(train=samples(5), loss=None, training_step=step, epochs=1, batch_size=2, accumulation=3)
    trainer.fit()
    (row,) = trainer.history
    assert (row.metrics["score"], row.metrics["tokens"], row.metrics["samples"]) == (3.0, 15, 5)


@pytest.mark.parametrize("seed", [0, 3])
def test_trainer_same_seed_gives_the_same_losses(seed):
    first, second = (make(dropping_out(), epochs=2, seed=seed) for _ in range(2))
    first.fit()
    torch.rand(17)
    second.fit()
    assert losses(first) == losses(second)


def test_trainer_without_a_seed_leaves_random_states_alone():
    runs = []
    for seed in (1, 2, 1):
        trainer = make(dropping_out(), epochs=1, seed=None)
        torch.manual_seed(seed)
        trainer.fit()
        runs.append(losses(trainer))
    assert runs[0] == runs[2] != runs[1]


def test_trainer_part_that_is_set_to_evaluate_at_the_start_stays_so():
    model, modes = dropping_out(), []
    callbacks = [
        hl.on("train_start", lambda loop: model[1].eval() and None),
        hl.on("step_end", lambda loop: modes.append((model.training, model[1].training))),
    ]
    make(model, val=samples(4), epochs=2, validate_at_start=True, callbacks=callbacks).fit()
    assert modes == [(True, False)] * 4


def test_trainer_load_checkpoint_in_the_middle_of_an_epoch_is_an_error(tmp_path):
    saved = make(epochs=1).save_checkpoint(tmp_path / "saved")
    callbacks = [hl.on("step_end", lambda loop: loop.load_checkpoint(saved.path))]
    with pytest.raises(OptionError, match=r"middle of an epoch.* resume\(path\)"):
        make(epochs=1, callbacks=callbacks).fit()


# Accelerate


@pytest.fixture
def accelerate():
    """Accelerate as in a new process: what it computes in holds for all of one."""
    state = pytest.importorskip("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("accelerate")
@pytest.mark.parametrize("settings", [{}, {"accumulation": 2, "gradient_clip_norm": 0.5, "schedule": "cosine"}])
def test_trainer_on_accelerate_gives_the_results_of_plain_torch_bit_for_bit(settings):
    from hookline.loops.backends import AccelerateBackend

    models, runs = (dropping_out(), dropping_out()), []
    for model in models:
        recording = RecordingCallback()
        trainer = make(model, samples(10), samples(6, seed=2), epochs=2, callbacks=[recording], **settings)
        if model is models[1]:
            trainer.backend = AccelerateBackend("fp32", "cpu")
        trainer.fit()
        runs.append(([(row.step, row.metrics) for row in trainer.history], recording.names()))
    assert runs[0] == runs[1]
    assert same(weights(models[0]), weights(models[1]))


@pytest.mark.usefixtures("accelerate")
def test_trainer_in_bf16_computes_in_it_and_learns():
    model, kinds = dropping_out()[::2], []
    model[0].register_forward_hook(lambda module, inputs, output: kinds.append(output.dtype))
    trainer = make(model, samples(64), samples(8), epochs=15, precision="bf16", learning_rate=0.02)
    trainer.fit()
    assert set(kinds) == {torch.bfloat16}
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert losses(trainer)[-1] < 0.05 * losses(trainer)[0]


@pytest.mark.usefixtures("accelerate")
def test_trainer_on_accelerate_accumulates_as_its_settings_say_and_not_the_environment(monkeypatch):
    norms = []
    for steps in ("1", "4"):
        monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", steps)
        trainer = make(max_steps=1, precision="bf16", gradient_clip_norm=1.0)
        trainer.fit()
        norms.append(trainer.history[0].metrics["grad_norm"])
    assert norms[0] == norms[1]


@pytest.mark.usefixtures("accelerate")
def test_trainer_in_another_precision_than_one_before_in_the_process_is_an_error():
    make(epochs=1, precision="bf16")
    with pytest.raises(OptionError, match="Accelerate computes in one precision .* in a process"):
        make(epochs=1, precision="fp16")


# What a step computes


class OwnLoss(torch.nn.Module):  # type: ignore[name-defined]
    """A model that returns its own loss, as Hugging Face's do."""

    def __init__(self, wrap):
        super().__init__()
        self.linear = linear()
        self.wrap = wrap

    def forward(self, inputs, labels):
        predicted = self.linear(inputs)
        return self.wrap({"loss": functional.mse_loss(predicted, labels), "logits": predicted})


def mappings():
    inputs, labels = samples().tensors
    return [{"inputs": inputs[:4], "labels": labels[:4]}, {"inputs": inputs[4:], "labels": labels[4:]}]


@pytest.mark.parametrize("wrap", [lambda outputs: SimpleNamespace(**outputs), dict])
def test_trainer_model_may_return_its_own_loss(wrap):
    trainer, reference = make(OwnLoss(wrap), mappings(), loss=None, epochs=2), linear()
    trainer.fit()
    batches = [(batch["inputs"], batch["labels"]) for batch in mappings()]
    optimizer = torch.optim.AdamW(reference.parameters(), lr=1e-3, weight_decay=0.0)
    assert losses(trainer) == by_hand(reference, batches, optimizer, epochs=2)


def test_trainer_model_of_transformers_trains_and_validates():
    pytest.importorskip("transformers")
    from hookline.testing import character_tokenizer, tiny_causal_lm

    tokenizer = character_tokenizer("ab")
    ids = torch.tensor([[1, 4, 5, 4, 5, 4], [1, 5, 4, 5, 4, 5]])
    batches = [{"input_ids": ids, "labels": ids}] * 4
    trainer = make(tiny_causal_lm(tokenizer), batches, batches[:1], loss=None, epochs=3, learning_rate=0.01)
    before = trainer.validate()["val/loss"]
    trainer.fit()
    assert trainer.get_metric("val_loss") < before


def test_trainer_step_outputs_that_are_no_scalars_reach_the_callbacks_only():
    def step(model, batch):
        predicted = model(batch[0])
        loss = functional.mse_loss(predicted, batch[1])
        return {
            "loss": loss,
            "predicted": predicted,
            "error": {"largest": (predicted - batch[1]).abs().max()},
            "kind": "a",
        }

    seen = []
    look = hl.on("train_batch_end", lambda loop, outputs: seen.append(outputs["predicted"].shape))
    trainer = make(loss=None, training_step=step, epochs=1, callbacks=[look])
    trainer.fit()
    assert seen == [(4, 1), (4, 1)]
    assert [list(row.metrics) for row in trainer.history] == [["loss", "error/largest", "kind", "learning_rate"]] * 2
    assert all(type(row.metrics["error/largest"]) is float for row in trainer.history)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_trainer_step_may_return_the_loss_alone(shape):
    trainer = make(loss=None, training_step=lambda m, b: functional.mse_loss(m(b[0]), b[1]).reshape(shape), epochs=1)
    trainer.fit()
    reference = make(epochs=1)
    reference.fit()
    assert losses(trainer) == losses(reference)


def test_trainer_subclass_steps_are_used():
    class Own(hl.Trainer):
        def training_step(self, model, batch):
            return {"loss": functional.l1_loss(model(batch[0]), batch[1]), "at": self.step}

        def validation_step(self, model, batch):
            return {"accuracy": 0.25, "loss": torch.tensor(2.0)}

    trainer = make(kind=Own, val=samples(), loss=None, epochs=1)
    trainer.fit()
    assert [row.metrics.get("at") for row in trainer.history] == [0, 1, None]
    assert trainer.history[-1].metrics == {"val/accuracy": 0.25, "val/loss": 2.0}


@pytest.mark.parametrize(
    ("outputs", "metrics"), [({"accuracy": 0.5}, {"val/accuracy": 0.5}), ({"loss": 0.5}, {"val/loss": 0.5})]
)
def test_trainer_validation_step_needs_no_loss_to_train_on(outputs, metrics):
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return outputs

    assert make(kind=Own, val=samples(), epochs=1).validate() == metrics


# Validations


@pytest.mark.parametrize(
    ("settings", "validated_at"),
    [
        ({"epochs": 2}, [2, 4]),
        ({"epochs": 2, "validate_at_start": True}, [0, 2, 4]),
        ({"epochs": 3, "validate_every_epochs": 2}, [4, 6]),
        ({"epochs": 3, "validate_every_epochs": 2, "validate_at_end": False}, [4]),
        ({"epochs": 2, "validate_every_steps": 3}, [3, 4]),
        ({"epochs": 2, "validate_every_steps": 2}, [2, 4]),
        ({"epochs": 3, "validate_every_steps": 5, "validate_every_epochs": 2}, [4, 5, 6]),
        ({"max_steps": 3}, [2, 3]),
        ({"max_steps": 3, "validate_at_end": False}, [2]),
        ({"max_steps": 4, "validate_at_end": False}, [2, 4]),
        ({"epochs": 1, "accumulation": 2, "batch_size": 2, "validate_every_steps": 1}, [1, 2]),
    ],
)
def test_trainer_validates_when_due_and_never_twice_at_a_step(settings, validated_at):
    trainer = make(val=samples(4), **settings)
    trainer.fit()
    assert steps_with(trainer, "val/loss") == validated_at


def test_trainer_validates_at_the_end_of_an_epoch_before_the_moment_of_its_end():
    recording = RecordingCallback()
    make(train=samples(4), val=samples(4), epochs=1, callbacks=[recording]).fit()
    names = recording.names()
    assert names.index("on_eval") < names.index("on_train_epoch_end") < names.index("on_train_end")


def test_trainer_validation_batches_limit_each_validation():
    inputs, targets = samples(10, seed=2).tensors
    model = linear()
    trainer = make(model, val=TensorDataset(inputs, targets), epochs=1, validation_batches=2)
    expected = functional.mse_loss(model(inputs[:8]), targets[:8]).item()
    assert trainer.validate() == {"val/loss": pytest.approx(expected, rel=1e-6)}


def test_trainer_validation_of_a_ragged_last_batch_is_the_mean_over_all_samples():
    inputs, targets = samples(9, seed=2).tensors
    targets[8] += 100
    model = linear()
    trainer = make(model, val=TensorDataset(inputs, targets), epochs=1)
    whole = functional.mse_loss(model(inputs), targets).item()
    assert trainer.validate()["val/loss"] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("kind", [int, float, torch.tensor])
@pytest.mark.parametrize("name", ["tokens", "samples"])
def test_trainer_validation_is_weighted_by_what_outputs_count(name, kind):
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return {"loss": batch["loss"], name: kind(batch["count"])}

    batches = [{"loss": torch.tensor(1.0), "count": 1}, {"loss": torch.tensor(2.0), "count": 3}]
    metrics = make(kind=Own, val=batches, epochs=1).validate()
    assert metrics == {"val/loss": 1.75, f"val/{name}": 4}


def test_trainer_validation_leaves_out_batches_without_a_token():
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return {"loss": torch.tensor(batch), "tokens": 0 if math.isnan(batch) else 2}

    assert make(kind=Own, val=[1.0, math.nan, 2.0], epochs=1).validate() == {"val/loss": 1.5, "val/tokens": 4}


def test_trainer_validation_evaluates_without_gradients_and_trains_on_after():
    seen = []

    class Look(hl.Callback):
        def on_step_start(self, loop):
            seen.append(("train", loop.model.training, torch.is_grad_enabled()))

        def on_validation_batch_start(self, loop):
            seen.append(("validate", loop.model.training, torch.is_grad_enabled()))

    trainer = make(dropping_out(), val=samples(4), epochs=1, validate_every_steps=1, callbacks=[Look()])
    trainer.fit()
    assert seen == [("train", True, True), ("validate", False, False)] * 2


def test_trainer_validation_leaves_modules_in_the_mode_they_were_in():
    modes = []

    class Freeze(hl.Callback):
        def on_train_epoch_start(self, loop):
            loop.model[1].eval()

        def on_step_start(self, loop):
            modes.append([module.training for module in loop.model])

    make(dropping_out(), val=samples(4), epochs=1, validate_every_steps=1, callbacks=[Freeze()]).fit()
    assert modes == [[True, False, True]] * 2


@pytest.mark.parametrize("settings", [{"validate_every_steps": 1}, {"validate_at_start": True}, {"accumulation": 2}])
def test_trainer_validations_do_not_change_the_training(settings):
    class Drawing(hl.Callback):
        def on_validation_batch_start(self, loop):
            torch.rand(3)

    val = DataLoader(samples(4), batch_size=2, shuffle=True)
    common = {name: value for name, value in settings.items() if not name.startswith("validate")}
    with_validations = make(dropping_out(), val=val, epochs=3, callbacks=[Drawing()], **settings)
    without = make(dropping_out(), epochs=3, **common)
    with_validations.fit()
    without.fit()
    assert losses(with_validations) == losses(without)


def test_trainer_validations_that_draw_from_the_generator_of_the_training_do_not_change_it():
    def run(*, validates):
        generator = torch.Generator().manual_seed(3)
        train, val = (DataLoader(samples(), batch_size=2, shuffle=True, generator=generator) for _ in range(2))
        trainer = make(train=train, val=val if validates else None, epochs=3)
        trainer.fit()
        return losses(trainer)

    assert run(validates=True) == run(validates=False)


def test_trainer_that_fails_in_a_validation_is_set_to_train_again():
    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            raise KeyError("labels")

    trainer = make(kind=Own, val=samples(), epochs=1)
    with pytest.raises(KeyError):
        trainer.fit()
    assert trainer.state == "failed"
    assert trainer.model.training
    assert torch.is_grad_enabled()


def test_trainer_validate_works_before_and_after_training():
    trainer = make(val=samples(8), epochs=5, learning_rate=0.1, output_dir="runs", validate_at_start=True)
    before = trainer.validate()
    trainer.fit()
    after = trainer.validate()
    assert list(before) == list(after) == ["val/loss"]
    assert after["val/loss"] < before["val/loss"]
    assert steps_with(trainer, "val/loss") == [0, 2, 4, 6, 8, 10]
    assert trainer.history[0].metrics == before
    assert trainer.history[-1].metrics == after


def test_trainer_validate_under_another_name_does_not_stand_for_its_own_validation():
    trainer = make(
        val=samples(), epochs=1, callbacks=[hl.on("train_epoch_start", lambda t: (t.validate("probe"), None)[1])]
    )
    trainer.callbacks.add(hl.on("step_end", lambda t: (t.validate("probe"), None)[1]))
    trainer.fit()
    assert steps_with(trainer, "probe/loss") == [0, 1, 2]
    assert steps_with(trainer, "val/loss") == [2]


class Answering(hl.Trainer):
    """Returns predictions, texts and a score of one element beside the loss."""

    def validation_step(self, model, batch):
        inputs, targets = batch
        logits = model(inputs)
        return {
            "loss": functional.mse_loss(logits, targets),
            "logits": logits,
            "prompt": [f"sum {row.tolist()}" for row in inputs],
            "completion": [f"{value:.1f}" for value in logits.flatten().tolist()],
        }


def test_trainer_validation_outputs_are_whole():
    seen = []
    look = hl.on("validation_batch_end", lambda loop, outputs: seen.append(outputs))
    trainer = make(kind=Answering, val=samples(5), epochs=1, callbacks=[look])  # the last batch has one sample
    metrics = trainer.validate()
    assert list(metrics) == ["val/loss"]
    assert [list(outputs) for outputs in seen] == [["loss", "logits", "prompt", "completion"]] * 2
    assert [tuple(outputs["logits"].shape) for outputs in seen] == [(4, 1), (1, 1)]
    assert [len(outputs["completion"]) for outputs in seen] == [4, 1]


def test_trainer_validation_outputs_are_not_read_by_the_trainer():
    class OnDevice:
        """A scalar that is expensive to read."""

        ndim = 0

        def item(self):
            raise AssertionError("the device was waited for")

    class Own(hl.Trainer):
        def validation_step(self, model, batch):
            return {"loss": 0.5, "scores": [OnDevice(), OnDevice()]}

    seen = []
    look = hl.on("validation_batch_end", lambda loop, outputs: seen.append(len(outputs["scores"])))
    assert make(kind=Own, val=samples(4), epochs=1, callbacks=[look]).validate() == {"val/loss": 0.5}
    assert seen == [2]


def test_trainer_validation_of_a_loss_function_has_the_predictions():
    seen = []
    look = hl.on("validation_batch_end", lambda loop, outputs: seen.append(outputs["predictions"]))
    trainer = make(val=samples(5), epochs=1, callbacks=[look])
    assert list(trainer.validate()) == ["val/loss"]
    expected = trainer.model(samples(5).tensors[0])
    assert torch.equal(torch.cat(seen), expected.detach())


def test_trainer_sample_logger_records_samples_of_validations():
    logger = SampleLogger(n=3, source="validation")
    trainer = make(kind=Answering, val=samples(), epochs=1, callbacks=[logger])
    trainer.fit()
    first = samples().tensors[0][0].tolist()
    assert [(row["step"], set(row) - {"step"}) for row in trainer.samples] == [(2, {"prompt", "completion"})] * 3
    assert trainer.samples[0]["prompt"] == f"sum {first}"


def test_trainer_sample_logger_records_predictions_of_a_plain_model():
    trainer = make(val=samples(), epochs=1, callbacks=[SampleLogger(n=2, source="validation")])
    trainer.fit()
    inputs, targets = samples().tensors
    with torch.no_grad():
        predictions = trainer.model(inputs)
    assert trainer.samples == [
        {"step": 2, "input": inputs[i].tolist(), "target": targets[i].tolist(), "predictions": predictions[i].tolist()}
        for i in range(2)
    ]


def test_trainer_several_validation_sets_are_evaluated_one_after_the_other():
    seen = []
    look = hl.on("eval", lambda loop, i, name, metrics: seen.append((i + 1, name, list(metrics))))
    sets = {"easy": samples(4), "hard": samples(8, seed=2)}
    trainer = make(val=sets, epochs=2, callbacks=[look, EarlyStoppingCallback("val/hard/loss", patience=9)])
    trainer.fit()
    assert seen == [(step, f"val/{name}", [f"val/{name}/loss"]) for step in (2, 4) for name in ("easy", "hard")]
    assert list(trainer.validate()) == ["val/easy/loss", "val/hard/loss"]
    assert trainer.metrics["val/easy/loss"] == make(trainer.model, val=samples(4), epochs=1).validate()["val/loss"]


def test_trainer_plateau_follows_the_first_of_several_validation_sets():
    def waiting(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)

    trainer = make(val={"easy": samples(4), "hard": samples(8, seed=2)}, epochs=2, scheduler=waiting)
    trainer.fit()
    assert trainer.scheduler.best == trainer.metrics["val/easy/loss"]


@pytest.mark.parametrize("sets", [{}, {"": [1]}, {1: [1]}, {"a/": [1]}])
def test_trainer_validation_sets_without_a_name_are_refused(sets):
    with pytest.raises(OptionError, match="val_data"):
        make(val=sets, epochs=1)


def test_trainer_test_is_an_evaluation_and_recorded_in_the_run_of_the_training():
    recording = RecordingCallback()
    trainer = make(val=samples(), epochs=1, output_dir="runs", callbacks=[recording], test_data=samples(6, seed=3))
    trainer.fit()
    recording.clear()
    metrics = trainer.test()
    assert list(metrics) == ["test/loss"]
    assert recording.names() == [
        "on_validation_start",
        "on_validation_epoch_start",
        *["on_validation_batch_start", "on_validation_batch_end"] * 2,
        *[f"on_{name}" for name in VALIDATION_END],
    ]
    assert recording.events[-1].arguments == (1, "test", metrics)
    rows = [record for record in hl.read(trainer.dir) if isinstance(record, Metrics) and "test/loss" in record.values]
    assert [(row.axis, row.step, row.values) for row in rows] == [("eval", 2, metrics)]
    assert [record.status for record in hl.read(trainer.dir) if isinstance(record, Status)][-1] == "finished"


def test_trainer_test_takes_data_by_name_and_needs_some():
    trainer = make(val=samples(), epochs=1)
    assert list(trainer.test({"a": samples(), "b": samples()})) == ["test/a/loss", "test/b/loss"]
    assert list(trainer.test(samples())) == ["test/loss"]
    with pytest.raises(OptionError, match=r"test\(\): there is no data to test on. Give test\(data\)"):
        trainer.test()


def test_trainer_predict_returns_what_the_model_gives_for_each_batch():
    recording = RecordingCallback()
    trainer = make(epochs=1, callbacks=[recording])
    predicted = trainer.predict(samples(5))
    assert torch.equal(torch.cat(predicted), trainer.model(samples(5).tensors[0]).detach())
    assert [tuple(batch.shape) for batch in predicted] == [(4, 1), (1, 1)]
    assert (recording.names(), trainer.history, trainer.model.training) == ([], [], True)


# What callbacks ask for


def test_trainer_answers_requests_at_the_next_step_boundary():
    recording = RecordingCallback()

    class Asking(hl.Callback):
        def on_train_batch_start(self, loop, batch, batch_idx):
            if loop.step == 0:
                loop.request_validation()
                loop.request_checkpoint()

    settings = {"validate_every_epochs": 9, "validate_at_end": False, "save_at_end": False, "output_dir": "runs"}
    trainer = make(val=samples(4), epochs=1, callbacks=[recording, Asking()], **settings)
    trainer.fit()
    assert steps_with(trainer, "val/loss") == [1]
    assert [row.step for row in trainer.checkpoints] == [1]
    names = recording.names()
    assert names.index("on_log") < names.index("on_validation_start") < names.index("on_checkpoint")


def test_trainer_request_of_a_validation_at_the_last_step_is_not_answered_twice():
    trainer = make(val=samples(4), epochs=1, callbacks=[hl.on("step_end", lambda loop: loop.request_validation())])
    trainer.fit()
    assert steps_with(trainer, "val/loss") == [1, 2]


def test_trainer_request_of_a_validation_without_data_is_no_error():
    trainer = make(epochs=1, callbacks=[hl.on("step_end", lambda loop: loop.request_validation())])
    assert trainer.fit().step == 2


def test_trainer_saves_a_checkpoint_asked_for_inside_a_step_when_the_step_is_complete():
    promised = []
    for moment in ("step_start", "train_batch_end", "before_optimizer_step", "step_end"):
        save = hl.on(moment, lambda loop: promised.append(loop.save_checkpoint()), every=2)
        trainer = make(epochs=1, save_at_end=False, output_dir="runs", callbacks=[save])
        trainer.fit()
        (saved,) = trainer.checkpoints
        assert (saved.step, saved.path) == (promised[-1].step, promised[-1].path)
        assert saved.step == 2
        assert saved.path.is_dir()


@pytest.mark.parametrize(
    ("moment", "steps"),
    [("train_start", 0), ("step_start", 1), ("train_batch_end", 1), ("step_end", 1), ("log", 1), ("eval", 2)],
)
def test_trainer_stops_when_asked_to(moment, steps):
    recording = RecordingCallback()
    stop = hl.on(moment, lambda loop: loop.request_stop("enough"))
    trainer = make(val=samples(4), epochs=3, callbacks=[recording, stop])
    artifacts = trainer.fit()
    assert (artifacts.step, artifacts.stop_reason, trainer.state) == (steps, "enough", "stopped")
    assert recording.names()[-1] == "on_train_end"
    assert recording.names().count("on_train_epoch_start") == recording.names().count("on_train_epoch_end")
    assert steps_with(trainer, "val/loss") == ([2] if steps == 2 else [])


def test_trainer_stops_without_a_further_step_when_asked_to_after_a_checkpoint():
    class Preempted(hl.Callback):
        def on_step_end(self, loop):
            loop.request_checkpoint()

        def on_checkpoint(self, loop):
            loop.request_stop("saved")

    trainer = make(epochs=1, output_dir="runs", callbacks=[Preempted()])
    assert trainer.fit().step == 1


def test_trainer_should_stop_can_be_set_and_taken_back():
    class Wavering(hl.Callback):
        def on_step_start(self, loop, step_idx):
            loop.should_stop = True

        def on_step_end(self, loop, step_idx):
            if step_idx < 2:
                loop.should_stop = False

    trainer = make(epochs=5, callbacks=[Wavering()])
    assert trainer.fit().step == 3
    assert trainer.should_stop
    assert trainer.stop_requested


def test_trainer_stops_early_by_the_metric_of_its_validations():
    trainer = make(
        val=samples(4), epochs=9, learning_rate=1e-12, callbacks=[EarlyStoppingCallback(min_delta=0.1, patience=2)]
    )
    artifacts = trainer.fit()
    assert artifacts.step == 6
    assert artifacts.stop_reason.startswith("early stopping: val/loss")


# Optimizer and scheduler


def test_trainer_takes_an_optimizer_or_a_function_that_makes_one():
    runs = []
    for given in (
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
        lambda model: lambda p: torch.optim.SGD(p, lr=0.1),
    ):
        model = linear()
        trainer = make(model, epochs=2, optimizer=given(model))
        trainer.fit()
        assert isinstance(trainer.optimizer, torch.optim.SGD)
        runs.append(losses(trainer))
    assert runs[0] == runs[1]
    assert {row.metrics["learning_rate"] for row in trainer.history} == {0.1}


def test_trainer_function_of_the_optimizer_gets_the_parameters_that_can_be_trained():
    model = dropping_out()
    model[0].weight.requires_grad_(False)
    before = model[0].weight.clone()
    given = []
    trainer = make(model, epochs=1, optimizer=lambda p: given.append(len(p)) or torch.optim.SGD(p, lr=0.1))  # type: ignore[func-returns-value]
    trainer.fit()
    assert given == [3]
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("as_function", [True, False])
def test_trainer_scheduler_moves_once_a_step(as_function):
    def halving(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
    scheduler = halving if as_function else halving(optimizer)
    trainer = make(model, epochs=2, accumulation=2, batch_size=2, optimizer=optimizer, scheduler=scheduler)
    trainer.fit()
    assert [row.metrics["learning_rate"] for row in trainer.history] == [0.8, 0.4, 0.2, 0.1]


def test_trainer_plateau_scheduler_receives_the_loss_of_validations():
    def plateau(optimizer):
        return torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, patience=0, factor=0.5, threshold=10, threshold_mode="abs"
        )

    trainer = make(val=samples(4), epochs=3, learning_rate=0.4, scheduler=plateau)
    trainer.callbacks.add(hl.on("step_end", lambda loop: (loop.validate("probe"), None)[1]))
    trainer.fit()
    rates = [row.metrics["learning_rate"] for row in trainer.history if "learning_rate" in row.metrics]
    assert rates == [0.4, 0.4, 0.4, 0.4, 0.2, 0.2]


def test_trainer_schedule_follows_max_steps():
    trainer = make(epochs=100, max_steps=4, schedule="linear", learning_rate=1.0)
    trainer.fit()
    assert [row.metrics["learning_rate"] for row in trainer.history] == [1.0, 0.75, 0.5, 0.25]


def test_trainer_starts_without_gradients_from_before():
    models = linear(), linear()
    for parameter in models[0].parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    trainers = [make(model, epochs=1) for model in models]
    for trainer in trainers:
        trainer.fit()
    assert losses(trainers[0]) == losses(trainers[1])


# Callbacks from everywhere


def test_trainer_takes_callbacks_of_the_settings_and_its_own_and_functions():
    reports, hooked = [], []
    trainer = make(
        epochs=1,
        val=samples(4),
        callbacks=[RecordingCallback()],
        custom_logger_fns=[lambda report_data, step: reports.append((step, sorted(report_data)))],
        hook_fns={
            "post_training_step_hook": lambda worker, report_data: hooked.append((worker, report_data["current_step"]))
        },
    )
    assert trainer.fit().step == 2
    assert [step for step, _ in reports] == [1, 2, 2]
    assert "loss" in reports[0][1]
    assert "val/loss" in reports[2][1]
    assert [step for _, step in hooked] == [1, 2]
    assert all(worker is trainer for worker, _ in hooked)


def test_trainer_takes_callbacks_by_name_and_mapping():
    config = hl.TrainerConfig(
        **CONFIG, epochs=1, callbacks=["timer", {"early_stopping": {"monitor": "loss", "patience": 9}}]
    )
    recording = RecordingCallback()
    trainer = hl.Trainer(linear(), samples(), config=config, loss=functional.mse_loss, callbacks=[recording])
    assert trainer.callbacks.names() == ["timer", "early_stopping", "recording_callback"]
    assert trainer.callbacks["early_stopping"].patience == 9
    trainer.fit()
    assert recording.names()[-1] == "on_train_end"


@pytest.mark.parametrize("where", ["settings", "argument"])
def test_trainer_uses_the_very_collection_it_is_given(where):
    callbacks = hl.CallbackCollection([RecordingCallback()])
    config = hl.TrainerConfig(**CONFIG, epochs=1, callbacks=callbacks if where == "settings" else ())
    own = callbacks if where == "argument" else None
    trainer = hl.Trainer(linear(), samples(), config=config, loss=functional.mse_loss, callbacks=own)
    assert trainer.callbacks is callbacks


def test_trainer_collection_that_lets_exceptions_through_does_so_among_others():
    class Broken(hl.Callback):
        def on_step_end(self, loop):
            raise RuntimeError("broken")

    callbacks = hl.CallbackCollection([Broken()], strict=True)
    trainer = make(epochs=1, strict=False, callbacks=callbacks, custom_logger_fns=[lambda report_data, step: None])
    with pytest.raises(RuntimeError, match="broken"):
        trainer.fit()


def test_trainer_broken_observer_does_not_stop_it(caplog):
    class Broken(hl.Callback):
        def on_step_end(self, loop):
            raise RuntimeError("broken")

    trainer = make(epochs=3, strict=False, callbacks=[Broken()])
    assert trainer.fit().step == 6
    assert trainer.state == "completed"
    assert len(trainer.callbacks.failures) == 3


def test_trainer_works_with_all_built_in_callbacks_together(capsys):
    from hookline.callbacks import __all__ as names

    ema, csv = EMA(decay=0.5), CsvMetrics()
    builtin = [
        Alert("loss", above=1e9),
        CheckpointCallback("val/loss", save_top_k=1, every_n_steps=3),
        csv,
        ema,
        EarlyStoppingCallback("val/loss", patience=99),
        GradientMonitor(every=1),
        Heartbeat(),
        LearningRateMonitor(),
        LoggerCallback(),
        NaNGuard("skip"),
        NoProgress("loss", steps=100),
        PrintProgress(every=4),
        ProgressBar(),
        ProgressWatchdog(),
        ResourceMonitor(),
        SampleLogger(),
        ThroughputMonitor(),
        Timer(),
    ]
    assert {type(callback).__name__ for callback in builtin} == set(names) - {"Callback", "CallbackCollection"}
    settings = {"epochs": 3, "learning_rate": 0.1, "schedule": "linear", "validate_every_steps": 2}
    trainer = make(dropping_out(), val=samples(4), callbacks=builtin, output_dir="runs", **settings)
    before = trainer.validate()["val/loss"]
    trainer.fit()
    after = trainer.validate()["val/loss"]
    plain = make(dropping_out(), epochs=3, learning_rate=0.1, schedule="linear")
    plain.fit()
    assert losses(trainer) == losses(plain)
    assert trainer.callbacks.failures == []
    assert ema.updates == 6
    assert after != before
    row = next(row.metrics for row in trainer.history if row.step == 6 and "loss" in row.metrics)
    assert {"loss", "learning_rate", "grad_norm/0", "throughput/steps_per_second"} <= row.keys()


def test_trainer_validates_with_the_averages_of_an_ema():
    validated = []
    ema = EMA(decay=0.5)
    trainer = make(val=samples(4), epochs=2, learning_rate=0.1, callbacks=[ema])
    trainer.callbacks.add(hl.on("validation_batch_start", lambda loop: validated.append(weights(loop.model))))
    trainer.fit()
    assert same(validated[-1], list(ema.averages.values()))
    assert not same(validated[-1], weights(trainer.model))


# Losses that are not finite


def spoilt(at):
    """A loss that is NaN the ``at``-th time."""
    calls = []

    def loss(predicted, targets):
        calls.append(1)
        value = functional.mse_loss(predicted, targets)
        return value * math.nan if len(calls) == at else value

    return loss


@pytest.mark.parametrize("settings", [{}, {"accumulation": 2, "batch_size": 2}])
def test_trainer_nan_loss_is_an_error_before_the_weights_are_touched(settings):
    seen, recording = [], RecordingCallback()
    each_batch = 1 if not settings else 2
    trainer = make(epochs=2, loss=spoilt(2 * each_batch + 1), output_dir="runs", **settings)
    trainer.callbacks.add(recording)
    trainer.callbacks.add(hl.on("step_end", lambda loop: seen.append(weights(loop.model))))
    trainer.callbacks.add(hl.on("step_end", lambda loop: loop.request_checkpoint()))
    with pytest.raises(NonFiniteError, match="loss of step 3 is nan.*nan_guard"):
        trainer.fit()
    assert trainer.state == "failed"
    assert recording.names()[-1] == "on_exception"
    assert same(weights(trainer.model), seen[-1])
    saved = torch.load(trainer.checkpoints[-1].path / "model.pt", weights_only=True)
    assert [row.step for row in trainer.checkpoints] == [1, 2]
    assert same(list(saved.values()), seen[-1])


def test_trainer_that_failed_on_a_nan_loss_can_be_resumed_without_its_gradients():
    trainer = make(epochs=2, loss=spoilt(3), output_dir="runs")
    trainer.callbacks.add(hl.on("step_end", lambda loop: loop.request_checkpoint()))
    with pytest.raises(NonFiniteError):
        trainer.fit()
    trainer.resume("last")
    reference = make(epochs=2)
    reference.fit()
    assert trainer.state == "completed"
    assert same(weights(trainer.model), weights(reference.model))


def test_trainer_step_that_fails_is_recorded_with_what_it_logged():
    class Failing(hl.Callback):
        critical = True

        def on_before_optimizer_step(self, loop):
            loop.log(reason=7)
            raise RuntimeError("out of memory")

    trainer = make(epochs=1, callbacks=[Failing()], output_dir="runs")
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.fit()
    assert [(row.step, row.metrics["reason"]) for row in trainer.history] == [(1, 7)]
    assert not trainer.in_step


@pytest.mark.parametrize("grouped", [False, True])
def test_trainer_nan_guard_that_skips_leaves_out_the_update(grouped, caplog):
    guard = NaNGuard("skip")
    seen = []
    trainer = make(
        epochs=2, loss=spoilt(2), callbacks=[hl.CallbackCollection([guard], name="group") if grouped else guard]
    )
    trainer.callbacks.add(hl.on("step_end", lambda loop: seen.append(weights(loop.model))))
    assert trainer.fit().step == 4
    assert same(seen[0], seen[1])
    assert not same(seen[1], seen[2])
    assert math.isnan(losses(trainer)[1])
    assert "nan_guard: at step 2" in caplog.text


def test_trainer_nan_guard_that_is_added_later_is_in_charge(caplog):
    trainer = make(epochs=1, loss=spoilt(1))
    trainer.callbacks.add(NaNGuard("skip"))
    assert trainer.fit().step == 2


def test_trainer_nan_guard_that_stops_leaves_a_model_that_works(caplog):
    trainer = make(epochs=2, loss=spoilt(2), callbacks=[NaNGuard("stop")])
    artifacts = trainer.fit()
    assert (artifacts.step, trainer.state) == (2, "stopped")
    assert artifacts.stop_reason.startswith("nan_guard: the gradient of")
    assert all(parameter.isfinite().all() for parameter in trainer.model.parameters())


def test_trainer_nan_guard_that_warns_lets_it_train_on(caplog):
    trainer = make(epochs=2, loss=spoilt(2), callbacks=[NaNGuard("warn")])
    assert trainer.fit().step == 4
    assert trainer.state == "completed"
    assert not any(parameter.isfinite().all() for parameter in trainer.model.parameters())
    assert "nan_guard: at step 2" in caplog.text


def test_trainer_nan_loss_passes_where_it_may():
    trainer = make(epochs=2, loss=spoilt(2), nan_loss="pass")
    assert trainer.fit().step == 4
    assert [math.isnan(loss) for loss in losses(trainer)] == [False, True, True, True]


# What is kept


def test_trainer_without_an_output_dir_writes_nothing(tmp_path):
    trainer = make(val=samples(4), epochs=2)
    artifacts = trainer.fit()
    assert artifacts.output_dir is None
    assert list(tmp_path.iterdir()) == []
    assert [row.step for row in trainer.history] == [1, 2, 2, 3, 4, 4]
    row = trainer.save_checkpoint(tmp_path / "saved")
    assert (row.step, row.path) == (4, tmp_path / "saved")
    state = torch.load(tmp_path / "saved" / "model.pt", weights_only=True)
    assert same(list(state.values()), weights(trainer.model))


def test_trainer_history_is_the_same_recorded_or_in_memory():
    runs = []
    for directory in (None, "runs"):
        trainer = make(val=samples(4), epochs=2, output_dir=directory, gradient_clip_norm=1.0)
        trainer.fit()
        runs.append([(row.step, row.metrics) for row in trainer.history])
    assert runs[0] == runs[1]
    assert trainer.metrics["val/loss"] == runs[0][-1][1]["val/loss"]


def test_trainer_records_validations_as_such():
    trainer = make(val=samples(4), epochs=1, output_dir="runs")
    trainer.fit()
    records = list(hl.read(trainer.dir))
    axes = [record.axis for record in records if hasattr(record, "axis")]
    assert axes == ["train", "train", "eval"]
    assert [(record.name, record.step) for record in records if isinstance(record, Event)][:1] == [("eval", 2)]


def test_trainer_fit_again_has_nothing_to_do(caplog):
    trainer = make(epochs=1)
    first = trainer.fit()
    trained = weights(trainer.model)
    with caplog.at_level(logging.WARNING, logger="hookline"):
        second = trainer.fit()
    assert first == second
    assert same(trained, weights(trainer.model))
    assert "nothing to do" in caplog.text


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_trainer_fit_again_after_another_end_is_an_error(how):
    def end(loop):
        if how == "failed":
            raise RuntimeError("no")
        loop.request_stop("enough")

    trainer = make(epochs=1, callbacks=[hl.on("step_end", end)])
    if how == "failed":
        with pytest.raises(RuntimeError, match="no"):
            trainer.fit()
    else:
        trainer.fit()
    with pytest.raises(OptionError, match=f"This training is {how}: continue it with resume"):
        trainer.fit()


def test_trainer_interrupt_is_fired_on_the_callbacks_and_propagates():
    recording = RecordingCallback()

    def step(model, batch):
        raise KeyboardInterrupt

    trainer = make(loss=None, training_step=step, epochs=1, callbacks=[recording])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    assert recording.names()[-1] == "on_exception"
    assert "on_train_end" not in recording.names()


def test_trainer_accumulation_of_language_model_batches_weighs_by_tokens(tmp_path):
    from hookline.loops import sft
    from hookline.testing import character_tokenizer, tiny_causal_lm

    rows = [{"prompt": "a", "completion": "b"}] * 4 + [{"prompt": "a", "completion": "bcdefgh" * 4}] * 4
    tokenizer = character_tokenizer()
    data, collate = sft.prepare(rows, tokenizer, sft.SFTOptions(max_length=64))

    def trained(size, accumulation):
        model = tiny_causal_lm(tokenizer)
        loader = DataLoader(data, batch_size=size, collate_fn=collate)
        config = hl.TrainerConfig(
            epochs=1, accumulation=accumulation, output_dir=None, summary=False, optimizer="sgd", device="cpu"
        )
        trainer = hl.Trainer(model, loader, config=config, training_step=sft.training_step)
        trainer.fit()
        return trainer.metrics["loss"], torch.cat([p.detach().flatten() for p in model.parameters()])

    (small_loss, small), (big_loss, big) = trained(4, 2), trained(8, 1)
    assert small_loss == pytest.approx(big_loss, rel=1e-5)
    assert torch.allclose(small, big, atol=1e-6)


def test_trainer_forgotten_loss_of_pairs_is_an_error_that_says_what_to_give():
    trainer = make(loss=None, epochs=1)
    with pytest.raises(OptionError, match=r"give loss=, a function of \(prediction, targets\)"):
        trainer.fit()


class Uncompared(torch.Tensor):  # type: ignore[name-defined]
    """A number on a device: comparing it would wait for the device."""

    def __eq__(self, other):
        raise AssertionError("the share was compared")

    __hash__ = torch.Tensor.__hash__


def test_plain_backend_weighs_by_a_device_share_without_reading_it():
    from hookline.loops.backends import PlainBackend

    model = torch.nn.Linear(1, 1, bias=False)
    backend = PlainBackend("cpu")
    backend.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    share = torch.tensor(0.5).as_subclass(Uncompared)
    backend.learn(lambda model, batch: {"loss": model(batch).sum()}, torch.ones(1, 1), share, last=True)
    assert model.weight.grad.tolist() == [[0.5]]
