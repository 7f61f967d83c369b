"""A job that waits in its third step, at its first start: ``GATE`` is a pipe, read after a line ``ready``."""

import json
import os
from pathlib import Path

import hookline as hl

state = {"total": 0}


def save(directory):
    (directory / "total.json").write_text(json.dumps(state))


def load(directory):
    state.update(json.loads((directory / "total.json").read_text()))


name = f"job-{os.environ['SLURM_JOB_ID']}"
checkpoint = hl.callbacks.CheckpointCallback(every_n_steps=100)
with hl.run(name, resume="auto", save=save, load=load, callbacks=[checkpoint], summary=False, console=False) as run:
    for step in run.steps(6):
        state["total"] += step
        run.log(total=state["total"])
        if step == 2:
            print("ready", flush=True)
            Path(os.environ["GATE"]).read_text()
print("total", state["total"], flush=True)
