"""A destination for each sink: where it delivers to in a test, what arrived there, and how it can fail."""

from destinations.base import Destination
from destinations.files import CsvDestination, JsonlDestination, RunLogDestination
from destinations.hookline import HooklineDestination
from destinations.mlflow import MlflowDestination
from destinations.prometheus import PrometheusDestination
from destinations.status import StatusDestination
from destinations.streams import ConsoleDestination, FunctionDestination
from destinations.tensorboard import TensorboardDestination
from destinations.trackio import TrackioDestination
from destinations.wandb import WandbDestination

DESTINATIONS: list[type[Destination]] = [
    ConsoleDestination,
    CsvDestination,
    FunctionDestination,
    HooklineDestination,
    JsonlDestination,
    MlflowDestination,
    PrometheusDestination,
    RunLogDestination,
    StatusDestination,
    TensorboardDestination,
    TrackioDestination,
    WandbDestination,
]

__all__ = ["DESTINATIONS", "Destination"]
