"""A training script for `torchrun`: hook and logger functions that write down what they are given."""

import json
import os
from pathlib import Path

import torch

import hookline as hl

torch.set_num_threads(1)
calls, logged = [], []


def hook(name):
    return lambda worker, report_data: calls.append((name, sorted(report_data), type(worker).__name__))


def log(report_data, step):
    logged.append((step, sorted(report_data)))


result = hl.main([log], {name: hook(name) for name in ("pre_training_hook", "post_training_hook")})
found = {"world_size": os.environ["WORLD_SIZE"], "step": result.step, "calls": calls, "logged": logged}
found |= {"directory": str(result.output_dir)}
Path(f"tune-{os.environ['RANK']}.json").write_text(json.dumps(found))
