"""A loop written by hand in torch: what callbacks hear of it, its checkpoints and exact resume, alone and with DDP."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record.reader import last_status
from hookline._record.records import Metrics
from hookline.callbacks import EMA, GradientMonitor
from hookline.loops import checkpoint
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hookline.integrations.torch import run  # noqa: E402

torch.set_num_threads(1)
SCRIPT = Path(__file__).parent / "scripts" / "ddp.py"


def loader(count=12, *, generator=None):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    samples = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    return DataLoader(samples, batch_size=2, shuffle=True, generator=generator)


def parts(*, seed=3, width=8):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)


def train(name="torch", *, callbacks=(), seed=3, until=None, data=None, epochs=2, **options):
    """Train for some epochs of six steps; returns the run and its losses and learning rates."""
    model, optimizer, scheduler = parts(seed=seed)
    seen = []
    options = {"summary": False, "strict": True} | options
    with run(model, optimizer, scheduler, name=name, callbacks=callbacks, **options) as loop:
        for inputs, targets in loop.steps(loader() if data is None else data, epochs=epochs):
            loss = (model(inputs) - targets).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            seen.append((float(loss.detach()), scheduler.get_last_lr()[0]))
            loop.log(loss=loss)
            if loop.step + 1 == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, seen


def rows(loop, name):
    return [(row.step, row.metrics[name]) for row in loop.history if name in row.metrics]


def test_run_callbacks_find_model_optimizer_and_scheduler_and_hear_the_optimizer_step():
    received = RecordingCallback()

    class Look(hl.Callback):
        def on_before_optimizer_step(self, loop, optimizer):
            assert optimizer is loop.optimizer
            loop.log(largest=max(float(p.grad.abs().max()) for p in loop.model.parameters()))

    loop, seen = train(callbacks=[received, Look()], epochs=1)
    one_step = [
        *("on_step_start", "on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end"),
        *("on_step_end", "on_log"),
    ]
    assert received.names()[2:-2] == 6 * one_step
    assert rows(loop, "loss") == [(step, loss) for step, (loss, _) in enumerate(seen, 1)]
    assert all(value > 0 for _, value in rows(loop, "largest"))
    assert loop.scheduler.get_last_lr() == [seen[-1][1]]


def test_run_that_ended_leaves_the_optimizer_as_it_was():
    received = RecordingCallback()
    loop, _ = train(callbacks=[received], epochs=1)
    received.clear()
    loop.optimizer.step()
    assert received.names() == []


@pytest.mark.parametrize("until", [3, 6, 9])
def test_resume_repeats_losses_learning_rates_and_weights_exactly(until):
    straight, whole = train("straight")
    halved, first = train("halved", until=until)
    torch.randn(7)
    resumed, second = train("halved", seed=9, resume="last")
    assert (halved.state, len(first), resumed.dir) == ("stopped", until, halved.dir)
    assert first + second == whole
    assert rows(resumed, "loss") == rows(straight, "loss")
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_resume_with_a_generator_of_the_loader_repeats_its_order():
    def generator(seed):
        return torch.Generator().manual_seed(seed)

    _, whole = train("straight", data=loader(generator=generator(5)))
    _, first = train("halved", until=4, data=loader(generator=generator(5)))
    _, second = train("halved", resume="last", data=loader(generator=generator(6)))
    assert first + second == whole


class SaveAtEpoch(hl.Callback):
    """Saves as the second epoch starts."""

    def on_train_epoch_start(self, loop):
        torch.randn(2)
        if loop.epoch == 1:
            loop.save_checkpoint()


class Draw(hl.Callback):
    """Draws as an epoch starts."""

    def on_train_epoch_start(self, loop):
        torch.randn(2)


class Tape(DataLoader):
    """Batches in a row that keep their place from epoch to epoch."""

    at = 0

    def __iter__(self):
        for _ in range(6):
            self.at += 1
            yield torch.full((1, 4), self.at / 10), torch.ones(1, 1)

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


DATA = {
    "a loader": loader,
    "batches": lambda: list(loader(generator=torch.Generator().manual_seed(5))),
    "a loader that keeps its place": lambda: Tape(range(6)),
}


@pytest.mark.parametrize("kind", DATA)
def test_resume_from_a_checkpoint_saved_as_an_epoch_starts_is_exact(kind):
    _, whole = train("straight", callbacks=[Draw()], data=DATA[kind]())
    first, _ = train("first", callbacks=[SaveAtEpoch()], data=DATA[kind]())
    (saved,) = (row.path for row in first.checkpoints)
    resumed, second = train("first", callbacks=[Draw()], seed=9, resume=saved, data=DATA[kind]())
    assert (len(second), resumed.step) == (6, 12)
    assert second == whole[6:]


def test_resume_over_plain_batches_skips_those_that_are_done():
    batches = list(loader())
    _, whole = train("straight", data=batches)
    _, first = train("halved", until=8, data=batches)
    _, second = train("halved", seed=9, resume="last", data=batches)
    assert first + second == whole


def test_resume_reads_what_save_wrote_in_addition():
    read = []
    options = {"save": lambda path: (path / "more.txt").write_text("more")}
    train("more", until=2, **options)
    train("more", resume="last", load=lambda path: read.append((path / "more.txt").read_text()), **options)
    assert read == ["more"]


def test_resume_with_another_model_or_optimizer_is_refused_and_changes_nothing():
    stopped, _ = train(until=2)
    (saved,) = (row.path for row in stopped.checkpoints)
    wide, optimizer, scheduler = parts(width=9)
    before = [parameter.clone() for parameter in wide.parameters()]
    with pytest.raises(CheckpointError, match="is from another model"), run(wide, optimizer, scheduler, resume=saved):
        pass
    model, optimizer, _ = parts()
    message = "it has optimizer AdamW, scheduler StepLR, and this run has optimizer AdamW"
    with pytest.raises(CheckpointError, match=message), run(model, optimizer, resume=saved):
        pass
    assert all(torch.equal(mine, old) for mine, old in zip(wide.parameters(), before, strict=True))


def trainer():
    model, optimizer, scheduler = parts()
    config = hl.TrainerConfig(max_steps=2, summary=False)
    loss = torch.nn.functional.mse_loss
    return hl.Trainer(model, loader(), config=config, loss=loss, optimizer=optimizer, scheduler=scheduler)


def test_resume_from_a_checkpoint_of_a_trainer_is_refused_and_changes_nothing():
    made = trainer()
    (saved,) = (row.path for row in made.fit().checkpoints)
    model, optimizer, scheduler = parts(seed=9)
    before = [parameter.clone() for parameter in model.parameters()]
    message = r"was saved by a Trainer, not by a run of hookline.integrations.torch.*Nothing was changed"
    with pytest.raises(CheckpointError, match=message), run(model, optimizer, scheduler, resume=saved):
        pass
    assert all(torch.equal(mine, old) for mine, old in zip(model.parameters(), before, strict=True))
    assert optimizer.state_dict()["state"] == {}


def test_resume_of_a_trainer_from_a_checkpoint_of_a_run_is_refused_and_changes_nothing():
    stopped, _ = train(until=2)
    (saved,) = (row.path for row in stopped.checkpoints)
    made = trainer()
    before = [parameter.clone() for parameter in made.model.parameters()]
    message = r"was saved by a run of hookline.integrations.torch, not by a Trainer.*Nothing was changed"
    with pytest.raises(CheckpointError, match=message):
        made.resume(saved)
    assert all(torch.equal(mine, old) for mine, old in zip(made.model.parameters(), before, strict=True))
    assert (made.step, made.optimizer.state_dict()["state"]) == (0, {})


def test_checkpoint_holds_what_hookline_can_read_without_code():
    stopped, _ = train(until=2)
    (saved,) = (row.path for row in stopped.checkpoints)
    assert checkpoint.damage_of(saved) is None
    assert {"model.pt", "optimizer.pt", "random-rank0.pt"} <= {path.name for path in saved.iterdir()}
    assert set(torch.load(saved / "model.pt", weights_only=True)) == set(stopped.model.state_dict())


class Noisy(TensorDataset):
    """Samples that are different each time."""

    def __getitem__(self, index):
        inputs, targets = super().__getitem__(index)
        return inputs + torch.rand(()), targets


def noisy(count):
    return DataLoader(Noisy(*loader(count).dataset.tensors), batch_size=2, shuffle=True)


def accumulate(name, *, callbacks=(), seed=3, until=None, count=12, every=2, data=None, **options):
    """Two epochs of ``count / 2`` batches, of which so many make a step, across epochs."""
    model, optimizer, _ = parts(seed=seed)
    losses = []
    options = {"summary": False, "strict": True, "accumulation": every} | options
    with run(model, optimizer, name=name, callbacks=callbacks, **options) as loop:
        for inputs, targets in loop.steps(loader(count) if data is None else data, epochs=2):
            loss = (model(inputs) - targets).square().mean() / every
            loss.backward()
            losses.append(float(loss.detach()))
            loop.log(loss=loss)
            if len(losses) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
            if len(losses) == until:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, losses


def test_accumulation_makes_a_step_of_the_batches_up_to_the_update():
    received = RecordingCallback()
    loop, losses = accumulate("steps", callbacks=[received])
    assert (loop.step, loop.num_steps) == (6, 6)
    two = ["on_train_batch_start", "on_train_batch_end", "on_train_batch_start", "on_before_optimizer_step"]
    step = ["on_step_start", *two, "on_train_batch_end", "on_step_end", "on_log"]
    assert received.names()[2:-2] == [*(3 * step), "on_train_epoch_end", "on_train_epoch_start", *(3 * step)]
    assert rows(loop, "loss") == [(step, losses[2 * step - 1]) for step in range(1, 7)]


def test_accumulation_stop_and_checkpoint_wait_for_the_update_and_the_resume_is_exact():
    straight, whole = accumulate("straight")
    halved, first = accumulate("halved", until=3)
    assert (len(first), halved.step, [row.step for row in halved.checkpoints]) == (4, 2, [2])
    resumed, second = accumulate("halved", seed=9, resume="last")
    assert first + second == whole
    assert rows(resumed, "loss") == rows(straight, "loss")


def test_accumulation_batches_without_an_update_are_done_again_after_a_checkpoint():
    class SaveInTheMiddle(hl.Callback):
        def on_train_batch_end(self, loop, outputs, batch, batch_idx):
            if batch_idx == 2:
                row = loop.save_checkpoint()
                assert (row.step, loop.step) == (1, 1)
                loop.request_stop("killed here")

    stopped, first = accumulate("middle", callbacks=[SaveInTheMiddle()])
    again, second = accumulate("middle", seed=9, resume=stopped.checkpoints[0].path)
    assert again.step == 6
    assert len(second) == 10  # the third batch is done again
    assert (len(first), len(rows(again, "loss"))) == (4, 6)


class SaveAtBatch(hl.Callback):
    """Saves after a batch of an epoch."""

    def __init__(self, epoch, batch_idx):
        self.at = (epoch, batch_idx)

    def on_train_batch_end(self, loop, outputs, batch, batch_idx):
        if (loop.epoch, batch_idx) == self.at:
            loop.save_checkpoint()


@pytest.mark.parametrize(
    ("count", "every", "saved_at", "last_update"),
    [(12, 2, (0, 0), 0), (12, 2, (0, 2), 2), (12, 2, (1, 0), 6), (12, 3, (1, 4), 9), (10, 4, (1, 1), 4)],
    ids=["first step", "in an epoch", "an epoch begins", "second batch", "across epochs"],
)
def test_accumulation_resume_from_a_checkpoint_between_batches_of_a_step_is_exact(count, every, saved_at, last_update):
    shape = {"count": count, "every": every, "data": noisy(count)}
    straight, whole = accumulate("straight", **shape)
    first, _ = accumulate("first", callbacks=[SaveAtBatch(*saved_at)], **shape)
    (saved,) = (row.path for row in first.checkpoints)
    resumed, second = accumulate("first", seed=9, resume=saved, **shape)
    assert second == whole[last_update:]
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_accumulation_last_batches_that_no_update_comes_of_are_recorded_and_no_step():
    loop, losses = accumulate("rest", count=10, every=4)
    assert (loop.step, len(losses), loop.state) == (2, 10, "completed")
    assert rows(loop, "loss") == [(1, losses[3]), (2, losses[7]), (3, losses[9])]


def test_run_whose_critical_callback_fails_at_the_optimizer_is_recorded_as_failed():
    class Fail(hl.Callback):
        critical = True

        def on_before_optimizer_step(self, loop, optimizer):
            raise ValueError("exploded")

    with pytest.raises(ValueError, match="exploded"):
        train("failing", callbacks=[Fail()])
    (directory,) = Path("runs/default").iterdir()
    last = last_status(directory)
    assert (last.status, last.message) == ("failed", "ValueError: exploded")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": 3}, "model=3: give a torch.nn.Module"),
        ({"optimizer": None}, "optimizer=None: give a torch.optim.Optimizer"),
        ({"scheduler": 0.5}, "scheduler=0.5: give one with state_dict"),
        ({"scaler": "fp16"}, "scaler='fp16': give one with state_dict"),
        ({"accumulation": 0}, "accumulation=0: give a whole number of at least 1"),
    ],
)
def test_run_with_something_else_for_a_part_is_refused(given, message):
    model, optimizer, scheduler = parts()
    with pytest.raises(OptionError, match=message):
        run(**{"model": model, "optimizer": optimizer, "scheduler": scheduler} | given)


def test_scaler_is_part_of_the_checkpoint():
    def with_scaler(scale, **options):
        model, optimizer, _ = parts()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
        with run(model, optimizer, name="scaled", scaler=scaler, summary=False, strict=True, **options) as loop:
            for inputs, targets in loop.steps(loader(), total=4):
                scaler.scale((model(inputs) - targets).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if loop.step == 3:
                    loop.request_checkpoint()
        return scaler.get_scale()

    assert with_scaler(4.0) == 16.0
    assert with_scaler(2.0, resume="last") == 16.0


def test_compiled_model_is_the_loops_model_without_its_wrapper():
    model, optimizer, _ = parts()
    assert run(torch.compile(model, backend="eager"), optimizer).model is model


def compiled_trainer(tmp_path, *, wrap, callbacks=()):
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))
    config = hl.TrainerConfig(epochs=1, optimizer="adamw", output_dir=str(tmp_path), strict=True, summary=False)
    data = [(torch.ones(2, 4), torch.ones(2, 1))] * 3
    loss = torch.nn.functional.mse_loss
    return hl.Trainer(wrap(net), data, config=config, loss=loss, callbacks=callbacks)


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_inside(model):
    model[0] = compiled(model[0])
    return model


def named(trainer):
    return [parameter.tolist() for parameter in trainer.model.parameters()]


@pytest.mark.parametrize("wrap", [compiled, compiled_inside])
def test_compiled_model_is_saved_monitored_and_averaged_under_plain_names(tmp_path, wrap):
    ema = EMA(0.5)
    trainer = compiled_trainer(tmp_path, wrap=wrap, callbacks=[GradientMonitor(every=1), ema])
    trainer.fit()
    path = trainer.checkpoints[-1].path
    names = ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert sorted(torch.load(path / "model.pt", weights_only=True)) == sorted(ema.averages) == names
    assert sorted(name for name in trainer.metrics if "/" in name) == ["grad_norm/0", "grad_norm/1"]
    for other in (compiled, compiled_inside, lambda model: model):
        loaded = compiled_trainer(tmp_path, wrap=other)
        loaded.load_checkpoint(path)
        assert named(loaded) == named(trainer)


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "_forward_module.module."])
def test_checkpoint_that_was_saved_with_the_prefix_of_a_wrapper_loads(tmp_path, prefix):
    trainer = compiled_trainer(tmp_path, wrap=lambda model: model)
    trainer.fit()
    path = trainer.checkpoints[-1].path
    state = torch.load(path / "model.pt", weights_only=True)
    torch.save({prefix + name: value for name, value in state.items()}, path / "model.pt")
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["model.pt"] = (path / "model.pt").stat().st_size
    without_digests = {name: manifest[name] for name in manifest if name not in ("sha256", "#", "crc")}
    (path / "manifest.json").write_text(json.dumps(without_digests))
    for wrap in (compiled, lambda model: model):
        loaded = compiled_trainer(tmp_path, wrap=wrap)
        loaded.load_checkpoint(path)
        assert named(loaded) == named(trainer)


@pytest.fixture(scope="module")
def together(tmp_path_factory, torch_programs):
    """What two processes with DDP found."""
    root = tmp_path_factory.mktemp("ddp")
    torch_programs.run_ranks(2, SCRIPT, "{rank}", root)
    return [json.loads((root / f"found-{rank}.json").read_text()) for rank in range(2)]


def test_ddp_two_processes_make_one_record_with_reduced_metrics(together):
    zero, one = together
    assert (zero["ranks"], one["ranks"]) == ([0, 2], [1, 2])
    assert zero["directories"] == one["directories"]
    assert zero["moments"] == one["moments"]
    recorded = [row for row in hl.read(zero["directories"][0]) if isinstance(row, Metrics)]
    means = [row.values["mean"] for row in recorded if "mean" in row.values]
    losses = [sum(both) / 2 for both in zip(zero["losses"][0], one["losses"][0], strict=True)]
    assert means == pytest.approx(losses)
    assert [row.values["loss"] for row in recorded if "loss" in row.values] == pytest.approx(losses)
    assert not any(name.startswith("rank1/") for row in recorded for name in row.values)


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_fabric_with_ddp_resumes_in_the_order_it_had_under_plain_names(together):
    for rank in (each["fabric"] for each in together):
        straight, halved = rank["seen"]
        assert (rank["world_size"], halved) == (2, straight)
        assert [batch for batch, _ in straight[:4]] != [batch for batch, _ in straight[4:]]
        assert rank["monitored"] == ["grad_norm/0", "grad_norm/1"]
        assert rank["saved"] == ["0.bias", "0.weight", "1.bias", "1.weight"]


def test_ddp_stop_and_checkpoint_asked_for_on_rank_one_are_of_both_at_the_same_step(together):
    zero, one = together
    assert zero["stopped"] == [3, "stopped", "one has enough (requested by rank 1)"]
    assert one["stopped"] == [3, "stopped", "one has enough"]
    assert zero["saved"] == one["saved"]
    ((step, path),) = zero["saved"]
    assert (step, checkpoint.damage_of(Path(path))) == (3, None)
    assert sorted(file.name for file in Path(path).glob("random-*")) == ["random-rank0.pt", "random-rank1.pt"]


def test_ddp_resume_repeats_the_losses_of_both_ranks_exactly(together):
    for rank in together:
        straight, halved = rank["losses"]
        assert halved == straight
        assert rank["weights"][0] == rank["weights"][1]
    assert together[0]["weights"] == together[1]["weights"]
    assert together[0]["losses"] != together[1]["losses"]


def test_accumulation_resumed_at_the_end_of_an_epoch_with_a_short_window_plans_no_step_too_many():
    def train(until=None, **options):
        model, optimizer, _ = parts()
        with run(model, optimizer, name="short", accumulation=2, summary=False, strict=True, **options) as loop:
            for count, (inputs, targets) in enumerate(loop.steps(loader(10), epochs=2)):
                (model(inputs) - targets).square().mean().backward()
                if count % 5 in (1, 3, 4):
                    optimizer.step()
                if loop.step + 1 == until:
                    loop.request_checkpoint()
                    loop.request_stop("for now")
        return loop.step, loop.num_steps

    assert train(until=3) == (3, 6)
    assert train(resume="last") == (6, 6)


class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
    def __iter__(self):
        return iter(torch.arange(8.0).reshape(8, 1))


@pytest.mark.parametrize("accumulation", [1, 2])
def test_run_over_the_loader_of_an_iterable_dataset_trains_without_a_known_length(accumulation):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with run(model, optimizer, accumulation=accumulation, root=None, summary=False) as loop:
        for index, inputs in enumerate(loop.steps(DataLoader(Stream(), batch_size=2), epochs=2)):
            model(inputs).sum().backward()
            if index % accumulation == accumulation - 1:
                optimizer.step()
    assert (loop.step, loop.num_steps, loop.num_epochs) == (8 // accumulation, None, 2)


def train_with_an_epochs_tail(*, stop_at=None, **options):
    """Epochs of three steps that end with a step of the scheduler and a validation that draws numbers."""
    model, optimizer, _ = parts()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates, losses = [], []
    options = {"summary": False, "strict": True, "callbacks": [{"checkpoint": {"every_n_steps": 2}}]} | options
    with run(model, optimizer, scheduler, name="tail", **options) as loop:
        for _ in loop.epochs(3):
            for inputs, targets in loop.steps(loader(6)):
                loss = (model(inputs) - targets).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.detach()))
                rates.append(scheduler.get_last_lr()[0])
                if loop.step + 1 == stop_at:
                    loop.request_stop("for now")
            scheduler.step()
            with loop.validate() as validation:
                validation.log(loss=float(torch.rand(())))
    return loop, rates, losses


@pytest.mark.parametrize("stop_at", [4, 5, 6])
def test_run_that_stops_within_an_epoch_resumes_exactly_without_the_epochs_tail(stop_at, tmp_path):
    _, rates, losses = train_with_an_epochs_tail(root=tmp_path / "straight")
    stopped, first_rates, first_losses = train_with_an_epochs_tail(root=tmp_path / "halved", stop_at=stop_at)
    assert [row.step for row in stopped.checkpoints][-1] == stop_at
    _, second_rates, second_losses = train_with_an_epochs_tail(root=tmp_path / "halved", resume="last")
    assert first_rates + second_rates == rates
    assert first_losses + second_losses == losses
