"""A resumed training continues as if it had never stopped: the same numbers, bit for bit, and one record."""

import random
import shutil
from typing import ClassVar

import numpy as np
import pytest

import hookline as hl
from hookline.loops.trainer_config import CheckpointRules

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402 - torch may be missing

STEPS = 9
"""Of three epochs over eleven samples, in batches of two, two of which make up a step; the last of an epoch has one."""


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


def drawn():
    """A number from each library that a training draws from."""
    return random.random() + float(np.random.rand()) + torch.rand(()).item()


class Noisy(Dataset):
    """Samples that are different each time."""

    def __init__(self, size=11):
        self.x = torch.randn(size, 3, generator=torch.Generator().manual_seed(7))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + 0.1 * drawn(), self.x[index].sum(0, keepdim=True)


class Stream(IterableDataset):
    """The same without a length or a fixed order."""

    def __iter__(self):
        return iter(Noisy()[index] for index in random.sample(range(11), 11))


class Draws(hl.Callback):
    """Draws at random wherever it can, and keeps the sum of what it drew in its state."""

    def __init__(self):
        self.total = 0.0

    def on_train_start(self, loop):
        drawn()

    def on_train_epoch_start(self, loop):
        drawn()

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.total += drawn()
        metrics["total"] = self.total

    def on_before_optimizer_step(self, loop, optimizer):
        loop.log(before=drawn())

    def on_validation_start(self, loop):
        drawn()

    def on_eval(self, loop, step_idx, eval_name, metrics):
        drawn()

    def on_train_epoch_end(self, loop):
        drawn()

    def on_train_end(self, loop, artifacts):
        drawn()

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state):
        self.total = state["total"]


class At(hl.Callback):
    """Does something at one moment of one step."""

    def __init__(self, step, act, moment="on_step_end"):
        self.step, self.act = step, act
        setattr(self, f"_{moment}", True)

    def _look(self, loop, moment):
        if getattr(self, f"_{moment}", False) and loop.step == self.step:
            self.act(loop)

    def on_train_batch_end(self, loop, outputs, batch, batch_idx):
        self._look(loop, "on_train_batch_end")

    def on_before_optimizer_step(self, loop, optimizer):
        self._look(loop, "on_before_optimizer_step")

    def on_step_end(self, loop, step_idx, batch, metrics):
        self._look(loop, "on_step_end")

    def on_log(self, loop, step, metrics):
        self._look(loop, "on_log")

    def on_validation_batch_end(self, loop, outputs, batch, batch_idx):
        self._look(loop, "on_validation_batch_end")

    def on_validation_end(self, loop):
        self._look(loop, "on_validation_end")

    def on_eval(self, loop, step_idx, eval_name, metrics):
        self._look(loop, "on_eval")

    def on_train_epoch_end(self, loop):
        self._look(loop, "on_train_epoch_end")


class SaveAtEpoch(hl.Callback):
    """Saves as one of the epochs starts."""

    def __init__(self, epoch):
        self.epoch = epoch

    def on_train_epoch_start(self, loop):
        if loop.epoch == self.epoch:
            loop.save_checkpoint()


def stop(loop):
    loop.request_stop("enough")


def save(loop):
    loop.save_checkpoint()


class Broken(Exception):
    """What ends a training in these tests without an orderly end."""


def fail(loop):
    raise Broken


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))


SETTINGS = {
    "epochs": 3,
    "accumulation": 2,
    "learning_rate": 0.01,
    "weight_decay": 0.1,
    "warmup_steps": 2,
    "schedule": "cosine",
    "gradient_clip_norm": 0.5,
    "summary": False,
    "strict": True,
}


def trainer_in(root, *more, data=None, val_data=None, **settings):
    """A Trainer with everything that has a state, in a process whose random states nobody knows."""
    random.seed()
    np.random.seed()
    size = {"batch_size": 2} if data is None or isinstance(data, Dataset) else {}
    config = hl.TrainerConfig(**(SETTINGS | size | {"output_dir": str(root)} | settings))
    callbacks = [Draws(), hl.callbacks.EMA(0.8), hl.callbacks.EarlyStoppingCallback("val/loss", patience=50), *more]
    train_data, val_data = Noisy() if data is None else data, Noisy(5) if val_data is None else val_data
    model, loss = network(), torch.nn.functional.mse_loss
    torch.seed()
    return hl.Trainer(model, train_data, val_data, config=config, loss=loss, callbacks=callbacks)


def outcome(trainer):
    """Everything that a training comes to."""
    return {
        "state": trainer.state,
        "rows": [(row.step, row.metrics) for row in trainer.history],
        "weights": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
        "averages": {name: value.tolist() for name, value in trainer.callbacks["ema"].averages.items()},
        "best": trainer.callbacks["early_stopping"].state_dict(),
        "learning_rate": trainer.scheduler.get_last_lr() if trainer.scheduler else None,
    }


def uninterrupted(root, *more, **settings):
    trainer = trainer_in(root, *more, **settings)
    trainer.fit()
    return outcome(trainer)


def resumed(root, *more, path="last", **settings):
    trainer = trainer_in(root, *more, **settings)
    trainer.resume(path)
    return outcome(trainer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The outcome of an uninterrupted training."""
    return uninterrupted(tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 2},
        {"validate_every_steps": 2, "epochs": 2},
        {"validate_every_steps": 3, "validate_every_epochs": 2, "validate_at_start": True, "epochs": 2},
        {"accumulation": 1, "max_steps": 8, "shuffle": False, "checkpoint": CheckpointRules(monitor="val/loss")},
        {"accumulation": 3, "max_steps": 5, "checkpoint": CheckpointRules(every_n_steps=2, save_top_k=-1)},
    ],
    ids=["epochs", "steps", "both", "no accumulation", "max_steps"],
)
def test_resume_after_a_stop_at_any_step_is_exact(tmp_path, settings):
    whole = uninterrupted(tmp_path / "whole", **settings)
    for step in range(1, whole["rows"][-1][0] + 1):
        first = trainer_in(tmp_path / f"{step}", At(step, stop), **settings)
        first.fit()
        if step == whole["rows"][-1][0]:  # nothing is left to stop
            assert outcome(first) == whole
            continue
        assert (first.state, first.step) == ("stopped", step)
        assert resumed(tmp_path / f"{step}", **settings) == whole, f"stopped at {step}"


def test_resume_again_and_again_is_exact(whole, tmp_path):
    trainer_in(tmp_path, At(1, stop)).fit()
    for step in range(2, STEPS):
        resumed(tmp_path, At(step, stop))
    assert resumed(tmp_path) == whole


def test_resume_of_the_same_trainer_is_exact(whole, tmp_path):
    trainer = trainer_in(tmp_path, At(4, stop))
    trainer.fit()
    with pytest.raises(hl.OptionError, match=r"resume\(\)"):
        trainer.fit()
    trainer.resume()
    assert outcome(trainer) == whole


@pytest.mark.parametrize("moment", ["on_train_batch_end", "on_before_optimizer_step", "on_step_end", "on_log"])
def test_resume_of_the_same_trainer_after_it_failed_inside_a_step_is_exact(tmp_path, moment):
    rules = CheckpointRules(every_n_steps=2)
    whole = uninterrupted(tmp_path / "whole", checkpoint=rules)
    trainer = trainer_in(tmp_path, At(5, fail, moment), checkpoint=rules)
    with pytest.raises(Broken):
        trainer.fit()
    assert trainer.state == "failed"
    trainer.callbacks.remove("at")
    trainer.resume()
    assert outcome(trainer) == whole


LOADERS = {
    "a loader": lambda: DataLoader(Noisy(), batch_size=2, shuffle=True),
    "a loader with a generator": lambda: DataLoader(
        Noisy(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(5)
    ),
    "a loader that drops the last": lambda: DataLoader(Noisy(), batch_size=3, shuffle=True, drop_last=True),
    "a sampler with replacement": lambda: DataLoader(
        Noisy(), batch_size=2, sampler=torch.utils.data.RandomSampler(range(11), replacement=True, num_samples=9)
    ),
    "a stream": Stream,
    "a loader of a stream": lambda: DataLoader(Stream(), batch_size=3),
    "a list of batches": lambda: [(x[None], x.sum()[None, None]) for x in Noisy().x],
    "no batches, but samples": lambda: DataLoader(Noisy(), batch_size=None),
}


@pytest.mark.parametrize("kind", LOADERS)
def test_resume_is_exact_whatever_the_data_comes_from(tmp_path, kind):
    settings = {"epochs": 2, "max_steps": 9, "validate_every_steps": 3}
    whole = uninterrupted(tmp_path / "whole", data=LOADERS[kind](), **settings)
    for step in range(1, whole["rows"][-1][0], 2):
        trainer_in(tmp_path / f"{step}", At(step, stop), data=LOADERS[kind](), **settings).fit()
        again = resumed(tmp_path / f"{step}", data=LOADERS[kind](), **settings)
        assert again == whole, f"stopped at {step}"


class Augmented(Noisy):
    """A data set that draws from a generator which the loader's order is drawn from too."""

    def __init__(self, generator):
        super().__init__()
        self.generator = generator

    def __getitem__(self, index):
        return self.x[index] + torch.rand((), generator=self.generator), self.x[index].sum(0, keepdim=True)


def augmented():
    generator = torch.Generator().manual_seed(5)
    return DataLoader(Augmented(generator), batch_size=2, shuffle=True, generator=generator)


def test_resume_with_a_generator_for_the_order_and_the_samples_is_exact(tmp_path):
    whole = uninterrupted(tmp_path / "whole", data=augmented())
    for step in (2, 3, 5):
        trainer_in(tmp_path / f"{step}", At(step, stop), data=augmented()).fit()
        assert resumed(tmp_path / f"{step}", data=augmented()) == whole


def shuffled_validation():
    return DataLoader(Noisy(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(11))


def test_resume_with_a_validation_in_an_order_of_its_own_is_exact(tmp_path):
    settings = {"validate_every_steps": 1, "validation_batches": 2}
    whole = uninterrupted(tmp_path / "whole", val_data=shuffled_validation(), **settings)
    trainer_in(tmp_path, At(4, stop), val_data=shuffled_validation(), **settings).fit()
    assert resumed(tmp_path, val_data=shuffled_validation(), **settings) == whole


@pytest.mark.parametrize("step", [2, 3])
def test_resume_with_workers_is_exact(tmp_path, step):
    settings = {"epochs": 2, "workers": 2}
    whole = uninterrupted(tmp_path / "whole", **settings)
    trainer_in(tmp_path / "stopped", At(step, stop), **settings).fit()
    assert resumed(tmp_path / "stopped", **settings) == whole


def kept_workers():
    """A loader whose workers stay from epoch to epoch; what they would draw themselves could not be repeated."""
    samples = [(x, x.sum(0, keepdim=True)) for x in Noisy().x]
    return DataLoader(samples, batch_size=2, shuffle=True, num_workers=1, persistent_workers=True)


def test_resume_with_workers_that_stay_is_exact(tmp_path):
    loaders = [kept_workers() for _ in range(3)]
    whole = uninterrupted(tmp_path / "whole", data=loaders[0], epochs=2)
    trainer_in(tmp_path / "stopped", At(4, stop), data=loaders[1], epochs=2).fit()
    assert resumed(tmp_path / "stopped", data=loaders[2], epochs=2) == whole
    for loader in loaders:
        loader._iterator = None  # workers that the garbage collector finds take five seconds to end


def batches_once():
    return ((x[None], x.sum()[None, None]) for x in Noisy().x)


def test_resume_with_an_iterator_continues_at_its_position(tmp_path):
    settings = {"epochs": 1, "schedule": "constant"}
    whole = uninterrupted(tmp_path / "whole", data=batches_once(), **settings)
    trainer = trainer_in(tmp_path, At(3, stop), data=batches_once(), **settings)
    trainer.fit()
    trainer.resume()
    assert outcome(trainer) == whole


def test_resume_with_an_iterator_that_is_past_the_checkpoint_says_so(tmp_path):
    trainer = trainer_in(tmp_path, At(2, save), At(4, fail), data=batches_once(), epochs=1, schedule="constant")
    with pytest.raises(Broken):
        trainer.fit()
    trainer.callbacks.remove(trainer.callbacks[-1])
    with pytest.raises(hl.OptionError, match="has yielded 8 batches, and training continues after the first 4"):
        trainer.resume()


OFTEN_VALIDATED = {"validate_every_steps": 1, "save_at_end": False}
PLACES = ["on_train_batch_end", "on_step_end", "on_log", "on_validation_batch_end", "on_validation_end", "on_eval"]


@pytest.fixture(scope="module")
def often_validated(tmp_path_factory):
    """The outcome of an uninterrupted training with a validation after each step."""
    return uninterrupted(tmp_path_factory.mktemp("often-validated"), **OFTEN_VALIDATED)


@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("moment", [*PLACES, "on_train_epoch_end"])
def test_resume_from_a_checkpoint_saved_at_any_moment_is_exact(often_validated, tmp_path, moment, step):
    first = trainer_in(tmp_path / "failed", At(step, save, moment), At(5, fail), **OFTEN_VALIDATED)
    with pytest.raises(Broken):
        first.fit()
    if first.checkpoints:
        assert resumed(tmp_path / "failed", **OFTEN_VALIDATED) == often_validated
    else:
        assert (moment, step) == ("on_train_epoch_end", 2)  # which is in the middle of an epoch


@pytest.mark.parametrize("kind", LOADERS)
def test_resume_from_a_checkpoint_saved_as_an_epoch_starts_is_exact(tmp_path, kind):
    settings = {"max_steps": 18, "validate_every_steps": 3, "save_at_end": False}
    whole = uninterrupted(tmp_path / "whole", data=LOADERS[kind](), **settings)
    first = trainer_in(tmp_path / "first", SaveAtEpoch(1), data=LOADERS[kind](), **settings)
    first.fit()
    (saved,) = (row.path for row in first.checkpoints)
    assert resumed(tmp_path / "first", path=saved, data=LOADERS[kind](), **settings) == whole


class Tape:
    """Endless batches in a row, six to an epoch, that keep their place."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        for _ in range(6):
            self.at += 1
            yield torch.full((1, 3), self.at / 10), torch.ones(1, 1)

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


def test_resume_from_a_checkpoint_saved_as_an_epoch_starts_loses_no_batch_of_data_that_keeps_its_place(tmp_path):
    settings = {"accumulation": 1, "epochs": 2, "schedule": "constant", "save_at_end": False}
    whole = uninterrupted(tmp_path / "whole", data=Tape(), **settings)
    first = trainer_in(tmp_path / "first", SaveAtEpoch(1), data=Tape(), **settings)
    first.fit()
    (saved,) = (row.path for row in first.checkpoints)
    again = resumed(tmp_path / "first", path=saved, data=Tape(), **settings)
    assert again["rows"][-1][0] == 12
    assert again == whole


@pytest.mark.parametrize("moment", ["on_step_end", "on_log"])
def test_resume_from_a_checkpoint_saved_before_the_validation_of_an_epoch_is_exact(whole, tmp_path, moment):
    first = trainer_in(tmp_path / "failed", At(6, save, moment), At(7, fail), save_at_end=False)
    with pytest.raises(Broken):
        first.fit()
    assert resumed(tmp_path / "failed", save_at_end=False) == whole


class Asks(hl.Callback):
    """Asks for a validation after its step, and then for a checkpoint."""

    def on_log(self, loop, step, metrics):
        if step == 4 and "val/loss" not in metrics:
            loop.request_validation()
            loop.save_checkpoint()


def test_resume_from_a_checkpoint_saved_while_a_validation_was_asked_for_makes_it(tmp_path):
    whole = uninterrupted(tmp_path / "whole", Asks(), save_at_end=False)
    assert [step for step, row in whole["rows"] if "val/loss" in row] == [3, 4, 6, 9]
    with pytest.raises(Broken):
        trainer_in(tmp_path / "failed", Asks(), At(5, fail), save_at_end=False).fit()
    assert resumed(tmp_path / "failed", Asks(), save_at_end=False) == whole


@pytest.mark.parametrize("fails_at", [2, 3, 6, 7])
def test_resume_after_a_failure_continues_from_the_latest_checkpoint(tmp_path, fails_at):
    settings = {"checkpoint": CheckpointRules(every_n_steps=2), "validate_every_steps": 2}
    whole = uninterrupted(tmp_path / "whole", **settings)
    with pytest.raises(Broken):
        trainer_in(tmp_path / "failed", At(fails_at, fail), **settings).fit()
    if fails_at <= 2:
        with pytest.raises(hl.UnknownNameError, match="has a checkpoint"):
            resumed(tmp_path / "failed", **settings)
    assert (
        resumed(tmp_path / "failed", path="last" if fails_at > 2 else latest(tmp_path / "failed"), **settings) == whole
    )


def latest(root):
    """The directory of the latest run below a root."""
    return max(root.glob("default/*/run.json"), key=lambda path: path.stat().st_mtime).parent


def test_resume_from_an_earlier_checkpoint_makes_what_came_after_it_obsolete(tmp_path):
    rules = {"checkpoint": CheckpointRules(every_n_steps=2, save_top_k=-1)}
    whole = uninterrupted(tmp_path, **rules)
    early = latest(tmp_path) / "checkpoints" / "step-00000004"
    back = trainer_in(tmp_path, At(5, stop), **rules)
    back.resume(early)
    assert [row.step for row in back.history if "loss" in row.metrics] == [1, 2, 3, 4, 5]
    assert [row for row in outcome(back)["rows"] if row[0] <= 5] == [row for row in whole["rows"] if row[0] <= 5]
    on = trainer_in(tmp_path, **rules)
    on.resume("last")  # which is the one of step 5, although one of step 9 is there
    assert outcome(on) == whole
    assert on.output_dir == latest(tmp_path)
    assert len(list((tmp_path / "default").iterdir())) == 1


def test_resume_with_an_epoch_or_a_step_more_is_as_if_it_had_been_so_from_the_start(tmp_path):
    settings = {"schedule": "constant"}
    longer = uninterrupted(tmp_path / "longer", epochs=3, **settings)
    uninterrupted(tmp_path / "short", epochs=2, **settings)
    assert resumed(tmp_path / "short", epochs=3, **settings) == longer
    uninterrupted(tmp_path / "steps", max_steps=4, validate_at_end=False, **settings)
    assert resumed(tmp_path / "steps", **settings) == longer


def test_resume_of_a_finished_training_has_nothing_to_do(tmp_path):
    whole = uninterrupted(tmp_path)
    again = trainer_in(tmp_path)
    assert (again.resume().step, outcome(again)) == (STEPS, whole)


class Plateau:
    """Settings with a scheduler that waits for a plateau."""

    settings: ClassVar = {"warmup_steps": 0, "schedule": "constant"}

    @staticmethod
    def trainer(root, *more):
        config = hl.TrainerConfig(epochs=4, batch_size=4, learning_rate=0.1, output_dir=str(root), summary=False)
        plateau = lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)  # noqa: E731
        data, loss = Noisy(), torch.nn.functional.mse_loss
        return hl.Trainer(network(), data, Noisy(5), config=config, scheduler=plateau, loss=loss, callbacks=more)


@pytest.mark.parametrize("step", [2, 3, 6])
def test_resume_with_a_scheduler_that_waits_for_a_plateau_is_exact(tmp_path, step):
    whole, first, second = (Plateau.trainer(tmp_path / name, *more) for name, more in plateau_runs(step))
    whole.fit()
    first.fit()
    second.resume(first.output_dir)
    assert [(row.step, row.metrics) for row in second.history] == [(row.step, row.metrics) for row in whole.history]
    assert second.scheduler.state_dict() == whole.scheduler.state_dict()


def plateau_runs(step):
    return [("whole", ()), ("stopped", (At(step, stop), At(step, save, "on_eval"))), ("stopped", ())]


def test_resume_with_a_learning_rate_of_numpy_works(tmp_path):
    def made(*more):
        scheduler = lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.float64(0.5))  # noqa: E731
        config = hl.TrainerConfig(epochs=1, batch_size=4, output_dir=str(tmp_path), summary=False)
        loss = torch.nn.functional.mse_loss
        return hl.Trainer(network(), Noisy(), config=config, scheduler=scheduler, loss=loss, callbacks=more)

    made(At(2, stop)).fit()
    assert made().resume().step == 3


# What can be taken up


def test_resume_takes_a_checkpoint_a_run_and_an_id(whole, tmp_path):
    for number, kind in enumerate(("checkpoint", "directory", "id", "relative")):
        root = tmp_path / f"{number}"
        first = trainer_in(root, At(4, stop))
        first.fit()
        path = {
            "checkpoint": first.checkpoints[-1].path,
            "directory": first.output_dir,
            "id": first.output_dir.name,
            "relative": first.checkpoints[-1].path.relative_to(tmp_path),
        }[kind]
        second = trainer_in(root)
        second.resume(path)
        assert (outcome(second), second.output_dir) == (whole, first.output_dir), kind


def test_resume_from_a_checkpoint_with_a_name_of_its_own_inside_of_a_run_resumes_the_run(whole, tmp_path):
    first = trainer_in(tmp_path / "runs", At(4, lambda loop: loop.save_checkpoint(loop.output_dir / "mine"), "on_log"))
    first.fit()
    second = trainer_in(tmp_path / "runs")
    second.resume(first.output_dir / "mine")
    assert (outcome(second), second.output_dir) == (whole, first.output_dir)


def test_resume_from_a_checkpoint_that_was_copied_away_begins_a_new_run(whole, tmp_path):
    first = trainer_in(tmp_path / "first", At(4, stop))
    first.fit()
    elsewhere = tmp_path / "elsewhere" / "copy"
    shutil.copytree(first.checkpoints[-1].path, elsewhere)
    second = trainer_in(tmp_path / "second")
    second.resume(elsewhere)
    rows = [row for row in whole["rows"] if row[0] > 4]
    assert outcome(second) == whole | {"rows": rows}
    assert second.output_dir.parent.parent == tmp_path / "second"
    assert [row.step for row in first.history][-1] == 4


def test_resume_with_nothing_to_resume_says_so_and_can_begin_afterwards(whole, tmp_path):
    trainer = trainer_in(tmp_path)
    with pytest.raises(hl.UnknownNameError, match="no run called 'train'"):
        trainer.resume("last")
    with pytest.raises(hl.UnknownNameError, match="no such run"):
        trainer.resume("nothing-here")
    trainer.fit()
    assert outcome(trainer) == whole


def test_resume_of_a_training_that_still_runs_is_an_error(tmp_path):
    errors = []

    def take_up(loop):
        loop.save_checkpoint()
        for path in ("last", loop.output_dir, loop.checkpoints[-1].path):
            try:
                trainer_in(tmp_path).resume(path)
            except hl.HooklineError as error:
                errors.append(str(error))

    trainer_in(tmp_path, At(2, take_up, "on_log")).fit()
    assert [("still running" in error, "step" in error) for error in errors] == [(True, False)] * 3


def test_resume_inside_of_its_own_training_is_an_error(tmp_path):
    trainer = trainer_in(tmp_path, At(2, lambda loop: loop.resume()))
    with pytest.raises(hl.OptionError, match="is running"):
        trainer.fit()


def test_resume_without_a_record_is_an_error():
    trainer = trainer_in(None, output_dir=None)
    with pytest.raises(hl.OptionError, match="output_dir=None"):
        trainer.resume()


def test_resume_auto_starts_continues_and_starts_again(whole, tmp_path):
    first = trainer_in(tmp_path, At(4, stop), resume="auto")
    first.fit()
    assert [row for row in outcome(first)["rows"] if row[0] <= 3] == [row for row in whole["rows"] if row[0] <= 3]
    second = trainer_in(tmp_path, resume="auto")
    second.fit()
    assert (outcome(second), second.output_dir) == (whole, first.output_dir)
    third = trainer_in(tmp_path, resume="auto")
    third.fit()
    assert outcome(third) == whole
    assert third.output_dir != first.output_dir


def test_resume_auto_of_a_run_without_a_checkpoint_restarts_it_and_says_so(whole, tmp_path, caplog):
    with pytest.raises(Broken):
        trainer_in(tmp_path, At(4, fail)).fit()
    again = trainer_in(tmp_path, resume="auto")
    again.fit()
    assert outcome(again) == whole
    assert len(list((tmp_path / "default").iterdir())) == 1
    assert "'train' has no checkpoint: it starts over at step 0." in caplog.text


def test_resume_of_the_same_trainer_in_a_run_without_a_checkpoint_is_an_error(tmp_path):
    trainer = trainer_in(tmp_path, At(4, fail))
    with pytest.raises(Broken):
        trainer.fit()
    with pytest.raises(hl.CheckpointError, match="no checkpoint to go back to from step 4"):
        trainer.resume(trainer.output_dir)


def test_resume_says_what_does_not_match(tmp_path, caplog):
    trainer_in(tmp_path, At(4, stop)).fit()
    resumed(tmp_path, batch_size=4)
    assert "saved with batch_size=2, now it is 4" in caplog.text


def test_resume_fires_the_moments_of_the_rest_only(tmp_path):
    trainer_in(tmp_path, At(4, stop), accumulation=4).fit()
    recording = hl.testing.RecordingCallback()
    resumed(tmp_path, recording, accumulation=4, val_data=Noisy(2))
    kept = {"on_train_start", "on_checkpoint_load", "on_train_epoch_start", "on_step_end", "on_eval", "on_train_end"}
    names = [name for name in recording.names() if name in kept]
    before, after = (
        ["on_train_epoch_start", "on_eval"],
        ["on_train_epoch_start", "on_step_end", "on_step_end", "on_eval"],
    )
    assert names == ["on_train_start", "on_checkpoint_load", *before, *after, "on_train_end"]


def test_resume_with_another_learning_rate_says_that_the_checkpoints_is_used(tmp_path, caplog):
    def trainer(**settings):
        config = hl.TrainerConfig(name="lr", output_dir=str(tmp_path), summary=False, device="cpu", **settings)
        data = [(torch.ones(2, 3), torch.ones(2, 1))] * 4
        torch.manual_seed(0)
        return hl.Trainer(torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss)

    trainer(epochs=1, learning_rate=0.1).fit()
    trainer(epochs=2, learning_rate=0.5).resume()
    assert "learning_rate=0.1, now it is 0.5: that of the checkpoint is used" in caplog.text


def test_resume_of_a_longer_schedule_continues_with_its_learning_rate(tmp_path, caplog):
    def trainer(epochs):
        config = hl.TrainerConfig(
            name="longer", output_dir=str(tmp_path), epochs=epochs, schedule="linear", summary=False, device="cpu"
        )
        data = [(torch.ones(2, 3), torch.ones(2, 1))] * 4
        torch.manual_seed(0)
        return hl.Trainer(torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss)

    trainer(1).fit()
    longer = trainer(2)
    longer.resume()
    rates = [row.metrics["learning_rate"] for row in longer.history if "learning_rate" in row.metrics]
    assert rates[4:] == pytest.approx([0.001 * (1 - step / 8) for step in range(4, 8)])
    assert "num_steps=4, now it is 8: the learning rate follows the new schedule" in caplog.text
