"""A Lightning training of two real processes, connected over gloo on loopback."""

import json
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import hookline as hl
from hookline._record.records import Metrics

if find_spec("lightning") is None:
    pytest.skip("lightning is not installed", allow_module_level=True)

TIMEOUT_SECONDS = 200
SCRIPT = """
    import json, sys
    from pathlib import Path
    import torch
    import torch.distributed as distributed

    rank, home = int(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{home}/store", rank=rank, world_size=2)

    import lightning.pytorch as lightning
    import hookline as hl
    from hookline.integrations.lightning import HooklineCallback, HooklineLogger

    class Regression(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch, batch_idx):
            loss = self.layer(batch[0]).square().mean()
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.layer(batch[0]).square().mean(), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Ask(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            if loop.rank == 1 and loop.step == 2:
                loop.request_checkpoint()
                loop.request_validation()
            if loop.rank == 1 and loop.step == 3:
                loop.request_stop("enough")

    def fit(callbacks, **resume):
        quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        logger = HooklineLogger("logged" if not callbacks else "run", root=home / "runs", summary=False)
        where = {"accelerator": "cpu", "devices": 2, "strategy": "ddp", "log_every_n_steps": 1}
        trainer = lightning.Trainer(max_epochs=2, callbacks=callbacks, logger=logger, **where, **quiet)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(16, 2)), batch_size=2)
        trainer.fit(Regression(), data, data, **resume)
        return trainer

    hooks = HooklineCallback([Ask()], root=home / "runs", strict=True, summary=False)
    trainer = fit([hooks])
    (saved,) = hooks.loop.checkpoints
    again = HooklineCallback(root=home / "runs", strict=True, summary=False)
    fit([again], ckpt_path=saved.path)
    fit([])
    facts = {
        "world": trainer.world_size,
        "rank": hooks.loop.rank,
        "stopped": [trainer.global_step, hooks.loop.stop_reason],
        "saved": saved.path.name,
        "again": [again.loop.step, again.loop.dir == hooks.loop.dir],
        "dir": str(hooks.loop.dir),
    }
    (home / f"{rank}.json").write_text(json.dumps(facts))
    distributed.barrier()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory, torch_programs):
    """The directory in which two processes trained."""
    directory = tmp_path_factory.mktemp("processes")
    launched = {"NODE_RANK": "0", "WORLD_SIZE": "2", "RANK": "{rank}", "LOCAL_RANK": "{rank}"}
    code = textwrap.dedent(SCRIPT)
    torch_programs.run_ranks(2, "-c", code, "{rank}", directory, env=launched, cwd=directory, timeout=TIMEOUT_SECONDS)
    return directory


def facts(home, rank):
    return json.loads((home / f"{rank}.json").read_text())


def rows(directory, axis):
    return [(r.step, list(r.values)) for r in hl.read(directory) if isinstance(r, Metrics) and r.axis == axis]


def test_lightning_processes_apply_one_ranks_request_together(home):
    zero, one = facts(home, 0), facts(home, 1)
    assert [(each["world"], each["rank"]) for each in (zero, one)] == [(2, 0), (2, 1)]
    assert (zero["stopped"], one["stopped"]) == ([3, "enough (requested by rank 1)"], [3, "enough"])
    assert zero["saved"] == one["saved"] == "step-00000002.ckpt"
    assert zero["dir"] == one["dir"]


def test_lightning_processes_resume_in_one_run(home):
    assert facts(home, 0)["again"] == facts(home, 1)["again"] == [8, True]
    directory = facts(home, 0)["dir"]
    assert rows(directory, "train") == [(step, ["loss", "train_loss"]) for step in range(1, 9)]
    assert rows(directory, "eval") == [(step, ["val/loss", "val_loss"]) for step in (2, 4, 8)]


def test_lightning_logger_alone_records_on_rank_zero(home):
    runs = {path.parent: json.loads(path.read_text())["name"] for path in Path(home).glob("runs/default/*/run.json")}
    (logged,) = (directory for directory, name in runs.items() if name == "logged")
    assert [step for step, names in rows(logged, "train") if "train_loss" in names] == list(range(8))
