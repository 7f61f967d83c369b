"""A loop over what Accelerate has prepared, and its tracker: in one process, and in two over gloo on loopback."""

import itertools
import json
import logging
from pathlib import Path

import pytest

import hookline as hl
from hookline._engine.errors import CheckpointError, OptionError
from hookline._record.reader import last_status
from hookline._record.records import Event, Metrics, Sample
from hookline.loops import checkpoint
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

from accelerate import Accelerator, DataLoaderConfiguration  # noqa: E402
from accelerate.state import AcceleratorState, GradientState, PartialState  # noqa: E402
from accelerate.utils import ProjectConfiguration  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from hookline.integrations.accelerate import HooklineTracker, run  # noqa: E402

torch.set_num_threads(1)
SCRIPT = Path(__file__).parent / "scripts" / "accelerated.py"


@pytest.fixture(autouse=True)
def _own_state():
    """Accelerate keeps what it found out in the process: each test starts fresh, and leaves nothing behind."""
    kinds = (AcceleratorState, GradientState, PartialState)
    for kind in kinds:
        kind._reset_state()
    yield
    for kind in kinds:
        kind._reset_state()


def prepared(accelerator, *, seed=3, count=14, width=8):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Dropout(0.5), torch.nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=2, shuffle=True)
    return accelerator.prepare(net, optimizer, scheduler, data)


def train(name="accelerated", *, callbacks=(), seed=3, until=None, accumulation=2, seedable=False, **options):
    """Two epochs of seven batches, two of them a step and the last one of its own."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=seedable),
    )
    model, optimizer, scheduler, data = prepared(accelerator, seed=seed)
    seen = []
    with run(accelerator, name, callbacks=callbacks, **{"summary": False, "strict": True} | options) as loop:
        for inputs, targets in loop.steps(data, epochs=2):
            with accelerator.accumulate(model):
                loss = (model(inputs) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            seen.append((float(loss.detach()), scheduler.get_last_lr()[0]))
            loop.log(loss=loss)
            if loop.step + 1 == until and accelerator.sync_gradients:
                loop.request_checkpoint()
                loop.request_stop("for now")
    return loop, seen


def rows(loop, name):
    return [(row.step, row.metrics[name]) for row in loop.history if name in row.metrics]


def test_plain_run_around_a_loop_of_accelerate_works_as_it_is():
    accelerator, received = Accelerator(cpu=True), RecordingCallback()
    model, optimizer, _, data = prepared(accelerator)
    with hl.run("plain", callbacks=[received], summary=False, strict=True) as loop:
        for inputs, targets in loop.steps(data):
            loss = (model(inputs) - targets).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            loop.log(loss=loss)
    assert (loop.rank, loop.world_size, loop.step, loop.num_steps) == (0, 1, 7, 7)
    assert [step for step, _ in rows(loop, "loss")] == [1, 2, 3, 4, 5, 6, 7]
    assert received.names().count("on_step_end") == 7


def test_run_steps_are_updates_and_callbacks_find_what_was_prepared():
    received = RecordingCallback()
    loop, seen = train(callbacks=[received])
    one = ["on_train_batch_start", "on_before_optimizer_step", "on_train_batch_end"]
    two = ["on_train_batch_start", "on_train_batch_end", *one]
    epoch = [
        "on_train_epoch_start",
        *(3 * ["on_step_start", *two, "on_step_end", "on_log"]),
        *("on_step_start", *one, "on_step_end", "on_log"),
        "on_train_epoch_end",
    ]
    assert received.names() == ["on_train_start", *epoch, *epoch, "on_train_end"]
    assert (loop.step, loop.num_steps, len(seen)) == (8, 8, 14)
    assert rows(loop, "loss")[:4] == [(step, seen[batch][0]) for step, batch in enumerate((1, 3, 5, 6), 1)]
    assert isinstance(loop.native, Accelerator)
    assert isinstance(loop.model, torch.nn.Sequential)
    assert type(loop.optimizer).__name__ == "AcceleratedOptimizer"
    assert type(loop.scheduler).__name__ == "AcceleratedScheduler"


@pytest.mark.parametrize(("until", "seedable"), [(2, False), (4, False), (6, False), (6, True)])
def test_resume_repeats_losses_learning_rates_and_weights_exactly(until, seedable):
    straight, whole = train("straight", seedable=seedable)
    halved, first = train("halved", until=until, seedable=seedable)
    torch.randn(7)
    resumed, second = train("halved", seed=3 if seedable else 9, resume="last", seedable=seedable)
    assert (halved.step, halved.state, resumed.dir) == (until, "stopped", halved.dir)
    assert first + second == whole
    assert rows(resumed, "loss") == rows(straight, "loss")
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


class SaveAtEpoch(hl.Callback):
    """Saves as the second epoch starts."""

    def on_train_epoch_start(self, loop):
        if loop.epoch == 1:
            loop.save_checkpoint()


def accumulate_by_hand(name="by hand", *, seed=3, until=None, every=2, save_at=None, **options):
    """Two epochs of seven batches and an update after every second, without ``accelerator.accumulate()``."""
    accelerator = Accelerator(cpu=True)
    model, optimizer, _, data = prepared(accelerator, seed=seed)
    losses, planned, batches = [], [], itertools.count(1)
    with run(accelerator, name, **{"summary": False, "strict": True} | options) as loop:
        for inputs, targets in loop.steps(data, epochs=2):
            loss = (model(inputs) - targets).square().mean() / every
            accelerator.backward(loss)
            losses.append(float(loss.detach()))
            loop.log(loss=loss)
            planned.append(loop.num_steps)
            if len(losses) == save_at:
                loop.save_checkpoint()
            if next(batches) % every == 0:
                optimizer.step()
                optimizer.zero_grad()
                if loop.step + 1 == until:
                    loop.request_checkpoint()
                    loop.request_stop("for now")
    return loop, losses, planned


def test_accumulation_by_hand_counts_updates_as_steps_and_finds_out_how_many_there_are():
    loop, losses, planned = accumulate_by_hand()
    assert (loop.step, loop.num_steps, len(losses)) == (7, 8, 14)
    assert rows(loop, "loss") == [(step, losses[2 * step - 1]) for step in range(1, 8)]
    assert planned == [14, 14] + [8] * 12


def test_accumulation_by_hand_with_the_number_given_plans_updates_from_the_start():
    loop, _, planned = accumulate_by_hand(accumulation=2)
    assert (loop.step, planned) == (7, [8] * 14)


def test_accumulation_by_hand_resumed_at_an_update_repeats_losses_and_weights_exactly():
    straight, whole, _ = accumulate_by_hand("straight")
    halved, first, _ = accumulate_by_hand("halved", until=3)
    resumed, second, _ = accumulate_by_hand("halved", seed=9, resume="last")
    assert (halved.step, first + second) == (3, whole)
    assert [p.tolist() for p in resumed.model.parameters()] == [p.tolist() for p in straight.model.parameters()]


@pytest.mark.parametrize("given", [None, 2])
def test_accumulation_by_hand_resumed_from_within_the_first_step_does_its_batches_again(given):
    _, whole, _ = accumulate_by_hand("straight", accumulation=given)
    halved, _, _ = accumulate_by_hand("halved", save_at=2, accumulation=given)
    _, again, _ = accumulate_by_hand("again", seed=9, resume=halved.checkpoints[0].path, accumulation=given)
    assert (halved.checkpoints[0].step, again) == (0, whole)


def test_accumulation_that_is_no_number_of_batches_is_refused():
    with pytest.raises(OptionError, match="accumulation=0: give a whole number of at least 1"):
        run(Accelerator(cpu=True), accumulation=0)


@pytest.mark.parametrize("seedable", [False, True])
def test_resume_from_a_checkpoint_saved_as_an_epoch_starts_is_exact(seedable):
    _, whole = train("straight", seedable=seedable)
    first, _ = train("first", callbacks=[SaveAtEpoch()], seedable=seedable)
    (saved,) = (row.path for row in first.checkpoints)
    resumed, second = train("first", seed=3 if seedable else 9, resume=saved, seedable=seedable)
    assert (len(second), resumed.step) == (7, 8)
    assert second == whole[7:]


class SaveAtBatch(hl.Callback):
    """Saves after a batch of an epoch."""

    def __init__(self, epoch, batch_idx):
        self.at = (epoch, batch_idx)

    def on_train_batch_end(self, loop, outputs, batch, batch_idx):
        if (loop.epoch, batch_idx) == self.at:
            loop.save_checkpoint()


@pytest.mark.parametrize(("saved_at", "last_update"), [((0, 0), 0), ((0, 2), 2), ((1, 0), 7), ((1, 4), 11)])
def test_resume_from_a_checkpoint_between_batches_of_a_step_is_exact(saved_at, last_update):
    straight, whole = train("straight")
    first, _ = train("first", callbacks=[SaveAtBatch(*saved_at)])
    (saved,) = (row.path for row in first.checkpoints)
    resumed, second = train("first", seed=9, resume=saved)
    assert (resumed.step, second) == (8, whole[last_update:])
    for mine, theirs in zip(resumed.model.parameters(), straight.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_checkpoint_is_accelerates_own_and_whole():
    halved, _ = train(until=2)
    (row,) = halved.checkpoints
    assert checkpoint.damage_of(row.path) is None
    assert {"model.safetensors", "optimizer.bin", "scheduler.bin"} <= {f.name for f in row.path.glob("accelerate/*")}


def test_resume_with_another_model_or_from_another_kind_of_checkpoint_is_refused():
    halved, _ = train(until=2)
    (saved,) = (row.path for row in halved.checkpoints)
    accelerator = Accelerator(cpu=True)
    prepared(accelerator, width=9)
    with pytest.raises(CheckpointError, match="Accelerate cannot load"), run(accelerator, "other", resume=saved):
        pass
    with hl.run("bare", summary=False) as bare:
        bare.save_checkpoint("elsewhere")
    with pytest.raises(CheckpointError, match="another kind of run"), run(accelerator, "other", resume="elsewhere"):
        pass


def test_run_refuses_what_is_no_accelerator_and_one_that_saves_elsewhere():
    with pytest.raises(OptionError, match="accelerator='cpu': give an accelerate.Accelerator"):
        run("cpu")
    configured = ProjectConfiguration("elsewhere", automatic_checkpoint_naming=True)
    with pytest.raises(OptionError, match="automatic_checkpoint_naming=True"):
        run(Accelerator(cpu=True, project_config=configured))


def test_run_given_one_of_several_models_takes_that_for_callbacks():
    accelerator = Accelerator(cpu=True)
    first, second = accelerator.prepare(torch.nn.Linear(1, 1), torch.nn.Linear(2, 1))
    with run(accelerator, "none", summary=False) as loop:
        assert loop.model is None
    with run(accelerator, "second", model=second, summary=False) as loop:
        assert loop.model is second is not first


def test_tracker_values_and_configuration_reach_the_record():
    tracker = HooklineTracker("tracked", config={"seed": 1}, summary=False)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project", config={"learning_rate": 0.1})
    for step in (10, 20):
        accelerator.log({"loss": torch.tensor(1.0 / step), "parts": {"a": 1}, "word": "good"}, step=step)
    accelerator.log({"eval": 0.5})
    directory = accelerator.get_tracker("hookline", unwrap=True).dir
    accelerator.end_training()
    recorded = [(row.step, row.values) for row in hl.read(directory) if isinstance(row, Metrics)]
    assert recorded == [
        (10, {"loss": pytest.approx(0.1), "parts/a": 1, "word": "good"}),
        (20, {"loss": pytest.approx(0.05), "parts/a": 1, "word": "good"}),
        (20, {"eval": 0.5}),
    ]
    assert json.loads((directory / "run.json").read_text())["config"] == {"seed": 1, "learning_rate": 0.1}
    assert last_status(directory).status == "finished"


def test_tracker_without_steps_counts_and_continues_in_its_run_after_the_end():
    tracker = HooklineTracker(summary=False)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    accelerator.log({"loss": 2.0})
    accelerator.log({"loss": 1.0})
    tracker.store_init_configuration({"late": True})
    tracker.finish()
    accelerator.log({"loss": 0.5})
    directory = tracker.tracker.dir
    tracker.finish()
    read = list(hl.read(directory))
    assert [(row.step, row.values) for row in read if isinstance(row, Metrics)] == [
        *((1, {"loss": 2.0}), (2, {"loss": 1.0}), (3, {"loss": 0.5})),
    ]
    assert [event.data for event in read if isinstance(event, Event) and event.name == "hyperparameters"] == [
        {"values": {"late": True}}
    ]
    assert [path.name for path in Path("runs/default").iterdir()] == [directory.name]


def test_tracker_leaves_out_what_is_no_number_and_says_so_once(caplog):
    tracker = HooklineTracker(summary=False)
    with caplog.at_level(logging.WARNING, "hookline"):
        for step in range(2):
            tracker.log({"image": torch.zeros(2, 2), "loss": step}, step=step)
    tracker.finish()
    rows = [row.values for row in hl.read(tracker._run.dir) if isinstance(row, Metrics)]
    assert rows == [{"loss": 0}, {"loss": 1}]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["run does not record 'image'"]


def test_tracker_table_is_samples():
    pandas = pytest.importorskip("pandas")
    tracker = HooklineTracker(summary=False)
    tracker.log_table("answers", columns=["prompt", "completion", "score"], data=[["1+1=", "2", 1.0]], step=4)
    tracker.log_table("answers", dataframe=pandas.DataFrame({"prompt": ["2+2="], "completion": ["5"]}), step=5)
    with pytest.raises(OptionError, match="give columns= and data=, or dataframe="):
        tracker.log_table("answers", columns=["prompt"])
    directory = tracker.tracker.dir
    tracker.finish()
    samples = [row for row in hl.read(directory) if isinstance(row, Sample)]
    assert [(row.step, row.prompt, row.completion, row.extra) for row in samples] == [
        (4, "1+1=", "2", {"table": "answers", "score": 1.0}),
        (5, "2+2=", "5", {"table": "answers"}),
    ]


@pytest.fixture(scope="module")
def together(tmp_path_factory, torch_programs):
    """What two processes of Accelerate found."""
    root = tmp_path_factory.mktemp("accelerate")
    launched = {"RANK": "{rank}", "LOCAL_RANK": "{rank}", "WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    launched |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}  # required, and not used: the script connects them
    torch_programs.run_ranks(2, SCRIPT, root, env=launched)
    return [json.loads((root / f"found-{rank}.json").read_text()) for rank in range(2)]


def test_processes_plain_run_around_a_loop_of_accelerate_is_one_record_and_stops_together(together):
    zero, one = (rank["plain"] for rank in together)
    assert (zero["ranks"], one["ranks"]) == ([0, 2], [1, 2])
    assert zero["directory"] == one["directory"]
    assert [(rank["step"], rank["state"]) for rank in (zero, one)] == 2 * [(3, "stopped")]
    assert zero["reason"] == "one has enough (requested by rank 1)"
    recorded = [row.values for row in hl.read(zero["directory"]) if isinstance(row, Metrics)]
    means = [row["mean"] for row in recorded if "mean" in row]
    assert means == pytest.approx([sum(both) / 2 for both in zip(zero["losses"], one["losses"], strict=True)])


def test_processes_run_stops_and_saves_together_at_an_update(together):
    zero, one = (rank["halved"] for rank in together)
    assert [(rank["step"], rank["state"], len(rank["losses"])) for rank in (zero, one)] == 2 * [(3, "stopped", 6)]
    assert zero["saved"] == one["saved"]
    ((step, path),) = zero["saved"]
    assert (step, checkpoint.damage_of(Path(path))) == (3, None)
    assert len(list(Path(path).glob("random-rank*"))) == 2


def test_processes_resume_repeats_the_losses_of_both_exactly(together):
    for rank in together:
        assert (rank["straight"]["step"], rank["straight"]["num_steps"]) == (8, 8)
        assert rank["halved"]["losses"] + rank["resumed"]["losses"] == rank["straight"]["losses"]
        assert rank["weights"][0] == rank["weights"][1]
    assert together[0]["weights"] == together[1]["weights"]
    assert together[0]["straight"]["losses"] != together[1]["straight"]["losses"]


def test_processes_tracker_records_what_the_main_one_logs(together):
    zero, one = (rank["tracked"] for rank in together)
    recorded = [(row.step, row.values) for row in hl.read(zero) if isinstance(row, Metrics)]
    assert recorded == [(step, {"loss": float(step), "rank": 0}) for step in range(3)]
    assert one == "GeneralTracker"  # Accelerate has none on other processes
