"""The lifecycle of a step, which every kind of loop shares."""

import pytest

import hookline as hl
from hookline._record.records import Metrics
from hookline.integrations.host_loop import HostLoop


def train_bare(callbacks):
    with hl.run(callbacks=callbacks, summary=False) as run:
        for loss in run.steps([0.5, 0.4, 0.3]):
            run.log(loss=loss)


def train_trainer(callbacks):
    torch = pytest.importorskip("torch")
    losses = iter([0.5, 0.4, 0.3])
    model = torch.nn.Linear(1, 1)

    def step(model, batch):
        return {"loss": model(batch).sum() * 0 + next(losses)}

    config = hl.TrainerConfig(max_steps=3, summary=False, nan_loss="pass")
    hl.Trainer(model, [torch.ones(1, 1)] * 3, config=config, training_step=step, callbacks=callbacks).fit()


def train_host(callbacks):
    loop = HostLoop("hosted", native=None, callbacks=callbacks, summary=False)
    loop.begin()
    loop.train_start(num_steps=3)
    try:
        for loss in (0.5, 0.4, 0.3):
            loop.step_start()
            loop.step_end(None, {"loss": loss})
    except RuntimeError as error:
        loop.failed(error)
        raise


class FailsAtTheEndOf(hl.Callback):
    critical = True

    def __init__(self, step):
        self.step = step

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.step:
            raise RuntimeError("critical")


@pytest.mark.parametrize("train", [train_bare, train_trainer, train_host])
def test_step_whose_end_raises_writes_its_row_at_its_own_number(train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match="critical"):
        train([FailsAtTheEndOf(3)])
    (run,) = tmp_path.glob("runs/*/*/run.json")
    rows = [record for record in hl.read(run.parent) if isinstance(record, Metrics)]
    assert [(row.step, round(row.values["loss"], 3)) for row in rows] == [(1, 0.5), (2, 0.4), (3, 0.3)]
