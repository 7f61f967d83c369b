"""`SFTPolicyWorker` fine-tunes a causal language model from a configuration; `main` is the entry of a training script.

The worker is what hook functions ``(worker, report_data)`` get. `main` reads the command line, trains, and returns the
result:

    python train.py --config sft.yaml train.epochs=3 --train.learning_rate 1e-4

Under ``torchrun`` or ``accelerate launch`` it runs on every rank; logger functions run on the main one only.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import ConfigError, HooklineError, MissingExtraError, OptionError, UnknownNameError
from hookline._engine.state import LogContext, LoopArtifacts
from hookline.config.loading import load_config
from hookline.loops.sft import prepare, read_rows, training_step
from hookline.loops.sft.data import template_text
from hookline.loops.sharded import whole_state
from hookline.loops.signals import exit_status, is_signal
from hookline.loops.tiny_model import character_tokenizer, tiny_causal_lm
from hookline.loops.trainer import Trainer
from hookline.loops.trainer_config import BATCH_SIZE
from hookline.loops.worker_config import ModelOptions, Rows, WorkerConfig

DEFAULT_CALLBACKS = ("progress_bar",)
"""The callbacks of a configuration that names none."""


class SFTPolicyWorker:
    """Holds the parts of one training: ``trainer``, ``model``, ``tokenizer`` and the loaders.

    Args:
        config: The settings.
        custom_logger_fns: Functions ``(report_data, step)`` called after each step and validation, on rank zero.
        hook_fns: Functions ``(worker, report_data)`` by the name of a hook.
        callbacks: Callbacks besides those of the settings.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
        hook_fns: Mapping[str, Any] | None = None,
        callbacks: Any = None,
    ) -> None:
        self.config = config
        self.model, self.tokenizer = model_and_tokenizer(config.model)
        if config.sft.chat_template is not None:  # saved with the model
            self.tokenizer.chat_template = template_text(config.sft.chat_template)
        self.train_data_loader = self._loader(config.data.train, shuffle=config.train.shuffle)
        validation = config.data.validation
        self.val_data_loader = None if validation is None else self._loader(validation, shuffle=False)
        shown = CallbackCollection(DEFAULT_CALLBACKS if config.train.callbacks == () else ())  # [] means none
        shown.extend(callbacks or ())
        self.trainer = Trainer(
            self.model,
            self.train_data_loader,
            self.val_data_loader,
            config=config.train,
            training_step=training_step,
            callbacks=shown,
            custom_logger_fns=custom_logger_fns,
            hook_fns=hook_fns,
        )
        self.trainer.worker = self
        self.trainer.recorded_config = config

    @property
    def rank(self) -> int:
        """This process's index."""
        return self.trainer.rank

    @property
    def state(self) -> str:
        """The state of the training: ``created``, ``running``, ``completed``, ``stopped`` or ``failed``."""
        return self.trainer.state

    @property
    def stop_reason(self) -> str | None:
        """The reason for a stop, if there was one."""
        return self.trainer.stop_reason

    @property
    def ctx(self) -> LogContext:
        """Names and ids of the run, and its error."""
        return self.trainer.ctx

    def run(self) -> LoopArtifacts:
        """Train to the end, save the model, and return what training leaves behind.

        A stop by a callback, such as early stopping, is an end; a training that a signal stopped continues later.
        """
        artifacts = self.trainer.fit()
        interrupted = artifacts.stop_reason is not None and is_signal(artifacts.stop_reason)
        if self.config.save_model and not interrupted:
            self._save_model()
        return artifacts

    def _loader(self, rows: Rows, *, shuffle: bool) -> Any:
        given = read_rows(rows) if isinstance(rows, str) else rows
        try:
            dataset, collate = prepare(given, self.tokenizer, self.config.sft)
        except OptionError as error:
            where = rows if isinstance(rows, str) else "data"
            raise ConfigError(f"{where}: {error} (rows count from 0)") from error
        size, workers = self.config.train.batch_size or BATCH_SIZE, self.config.train.workers
        return DataLoader(dataset, batch_size=size, shuffle=shuffle, num_workers=workers, collate_fn=collate)

    def _save_model(self) -> None:
        directory = self.trainer.output_dir
        weights = whole_state(self.trainer.model, keep=self.trainer.rank == 0)  # on all ranks: it gathers shards
        if directory is None or self.trainer.rank != 0:
            return
        aside, place = directory / ".model.partial", directory / "model"
        shutil.rmtree(aside, ignore_errors=True)
        self.trainer.model.save_pretrained(aside, state_dict=weights)
        self.tokenizer.save_pretrained(aside)
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)


def model_and_tokenizer(options: ModelOptions) -> tuple[Any, Any]:
    """Load or make the model and tokenizer of the options."""
    if options.tiny is not None:
        tokenizer, tiny = character_tokenizer(), options.tiny
        sizes = {name: getattr(tiny, name) for name in tiny.__struct_fields__}
        return tiny_causal_lm(tokenizer, **sizes), tokenizer
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingExtraError("Tuning a Hugging Face model", "hf") from error
    path = options.path or ""
    try:
        tokenizer = AutoTokenizer.from_pretrained(options.tokenizer or path)
        return AutoModelForCausalLM.from_pretrained(path), tokenizer
    except (OSError, ValueError) as error:
        here = "" if Path(path).exists() else " There is no such directory here."
        first = str(error).strip().partition("\n")[0]
        raise ConfigError(f"model.path: {path!r} cannot be loaded.{here} {first}") from error


USAGE_ERROR = 2


def main(
    custom_logger_fns: Iterable[Callable[..., Any]] | None = None,
    hook_fns: Mapping[str, Any] | None = None,
    *,
    callbacks: Any = None,
    argv: Sequence[str] | None = None,
) -> LoopArtifacts:
    """Train as a configuration file says, with loggers and hooks of your own.

    A mistake in the configuration is printed and ends the program with code 2. A training that a signal stopped is
    saved and ends the program with 128 plus the signal's number, as other programs do.

    Args:
        custom_logger_fns: Functions ``(report_data, step)`` called after each step and validation, on rank zero.
        hook_fns: Functions ``(worker, report_data)`` by the name of a hook.
        callbacks: Callbacks besides those of the configuration.
        argv: The command line; the program's by default.
    """
    parser = argparse.ArgumentParser(
        description="Fine-tune a causal language model.",
        epilog="Settings of the file are overridden by their path: train.epochs=3 or --train.epochs 3.",
        allow_abbrev=False,
    )
    parser.add_argument("--config", required=True, metavar="FILE", help="a YAML, TOML or JSON file with the settings")
    arguments, overrides = parser.parse_known_args(sys.argv[1:] if argv is None else list(argv))
    try:
        config = load_config(arguments.config, WorkerConfig, overrides)
        worker = SFTPolicyWorker(config, custom_logger_fns=custom_logger_fns, hook_fns=hook_fns, callbacks=callbacks)
    except HooklineError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - output of the program
        raise SystemExit(USAGE_ERROR) from error
    try:
        result = worker.run()
    except (UnknownNameError, ConfigError) as error:  # the run to resume
        print(f"error: {error}", file=sys.stderr)  # noqa: T201 - output of the program
        raise SystemExit(USAGE_ERROR) from error
    finally:
        leave_process_group()
    status = exit_status(result.stop_reason)
    if status is not None:
        raise SystemExit(status)
    return result


def leave_process_group() -> None:
    """Destroy the process group, where there is one."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
