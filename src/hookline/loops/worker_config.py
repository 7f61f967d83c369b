"""The configuration file of `hookline.main`: a model, data, how rows become examples, how to train."""

from typing import Any

import msgspec

from hookline._engine.errors import OptionError
from hookline.config.loading import CheckedStruct
from hookline.loops.sft.data import SFTOptions
from hookline.loops.trainer_config import TrainerConfig

Rows = str | list[dict[str, Any]]


class TinyModel(CheckedStruct, kw_only=True):
    """A small Llama over characters with random weights: for a first try, and for tests."""

    hidden_size: int = 64
    layers: int = 2
    heads: int = 4
    seed: int = 0


class ModelOptions(CheckedStruct, kw_only=True):
    """The model to tune.

    Args:
        path: The directory or name of a model, for ``from_pretrained``.
        tokenizer: The same for its tokenizer, where that is elsewhere.
        tiny: A small model that is made instead.
    """

    path: str | None = None
    tokenizer: str | None = None
    tiny: TinyModel | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) == (self.tiny is None):
            raise OptionError("model: give either path, a directory or name for from_pretrained, or tiny: {}.")
        if self.tiny is not None and self.tokenizer is not None:
            raise OptionError("model: tiny has its own tokenizer; leave tokenizer out.")


class DataOptions(CheckedStruct, kw_only=True):
    """The data to train and validate on.

    Args:
        train: A ``.jsonl`` or ``.json`` file of rows, or the rows: ``prompt`` and ``completion``, ``messages``, or
            ``text``.
        validation: The same for validations.
    """

    train: Rows
    validation: Rows | None = None


class WorkerConfig(CheckedStruct, kw_only=True):
    """The settings of an `SFTPolicyWorker`.

    Args:
        sft: How rows become examples.
        train: How to train.
        save_model: Save the trained model and its tokenizer to ``model/`` in the run's directory, with
            ``save_pretrained``.
        custom: Anything, for hooks and callbacks of your own: ``worker.config.custom``.
    """

    model: ModelOptions
    data: DataOptions
    sft: SFTOptions = msgspec.field(default_factory=SFTOptions)
    train: TrainerConfig
    save_model: bool = True
    custom: dict[str, Any] = msgspec.field(default_factory=dict)
