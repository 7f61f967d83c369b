"""Ray Train with two workers, in each of which a loop of torch trains; one fit goes through all scenarios.

Neither Ray nor torch is imported before a fit: Ray wants its settings first.
"""

import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hosts.base import Host
from hosts.scenarios import SCENARIOS, Facts, breaking, builtins

NAME = "ray"
WORKERS = 2


class RayTrain(Host):
    """`ray.train.torch.TorchTrainer`: what a worker of it runs."""

    name = NAME

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        import torch
        from ray.train.torch import prepare_model

        from hookline.integrations.ray import ReportCallback
        from hookline.integrations.torch import run
        from hosts.bare_loop import train_by_hand
        from hosts.regression import TRAIN, line, loader, optimizer_of

        model = prepare_model(line())
        optimizer = optimizer_of(model.parameters())
        given = [*callbacks, ReportCallback()]
        self.loop = run(model, optimizer, name=self.name, callbacks=given, resume=resume, **self.options)
        train_by_hand(self.loop, model, optimizer, loader(TRAIN), torch.Tensor.backward)


def fit(directory: Path) -> tuple[str, list[dict[str, Facts]]]:
    """Why the fit ended, and what each worker found; the test is skipped where Ray is not installed."""
    if find_spec("ray") is None:
        pytest.skip("ray is not installed")
    from hookline.rl.ray_cluster import RayCluster

    with RayCluster(WORKERS), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray uses what it deprecates itself
        from ray.train import RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        trainer = TorchTrainer(
            train_in_worker,
            train_loop_config={"directory": str(directory)},
            scaling_config=ScalingConfig(num_workers=WORKERS),
            torch_config=TorchConfig(backend="gloo"),
            run_config=RunConfig(name="contract", storage_path=str(directory / "storage")),
        )
        try:
            trainer.fit()
        except Exception as error:
            why = str(error)
        else:
            why = ""
    assert all(_file(directory, rank).exists() for rank in range(WORKERS)), why
    return why, [json.loads(_file(directory, rank).read_text()) for rank in range(WORKERS)]


def train_in_worker(config: dict[str, str]) -> None:
    """Go through all scenarios; at last, a critical callback ends the fit."""
    import ray.train

    directory = Path(config["directory"])
    facts = {name: scenario(RayTrain(directory / name)) for name, scenario in SCENARIOS.items()}
    facts["builtins"] = builtins(RayTrain(directory / "builtins"))
    _file(directory, ray.train.get_context().get_world_rank()).write_text(json.dumps(facts))
    RayTrain(directory / "end").train(breaking())


def _file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.json"
