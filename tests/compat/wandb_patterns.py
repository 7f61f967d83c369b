"""Sixty patterns of code that logs to wandb, each with what it must return and record.

A pattern is a function of the module that it calls ``wandb``: wandb itself, hookline's drop-in, or trackio. What it
returns, and the parts of the record that it names, are compared. `run_wandb_patterns.py` runs them and reads the
records. Where the drop-in differs from wandb on purpose, ``differs`` says how and why.
"""

import argparse
import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANY = "(not compared)"
SERVER = "W&B's server"


DIFFERENCES = {
    "lower steps": (
        "Values at a step lower than the current one are dropped.",
        "They are recorded at that step, with one warning. The summary is the same.",
    ),
    "charts": ("The table of a chart is recorded; W&B's page draws it.", "The chart is recorded as a figure as well."),
    "values of one step": (
        "A step is written when it is complete. Of a name that is logged twice, the last value is kept.",
        (
            "Each call is written at once, so `kill -9` loses nothing. History and summary have the last value, the "
            "charts all of them."
        ),
    ),
    "NaN in statistics": (
        "One NaN makes `min`, `max` and `mean` of `define_metric` NaN.",
        "Numbers that are not finite are left out.",
    ),
    "x-axes": (
        "A metric with `step_metric` is drawn over it; a `hidden` metric is not drawn.",
        "Both are recorded, and missing values of the x-axis are filled in. The page lets you choose the x-axis.",
    ),
    '`summary="best"`': ("Refused in recent versions.", "Accepted, with `goal=`, as in earlier versions."),
    "nested summaries": (
        '`summary["a"]["b"] = x` may replace the other values of `a`.',
        "They stay. The summary can also be read after `finish`.",
    ),
    "figures of matplotlib": ("Converted to Plotly.", "Recorded as pictures."),
    "pixels": ("Floats from 0 to 1 become 0.", "They have the full range, as in earlier versions."),
    "3-D objects, molecules": ("Drawn.", "Kept as files. `JoinedTable` and `PartitionedTable` record nothing."),
    "accounts": (
        "`login` needs a key; `url` is a page of W&B; `entity` is a user or a team.",
        "No key is needed; `url` is the run's directory, None offline; `entity` is kept and has no effect.",
    ),
    "modes": (
        "`online` sends, `offline` keeps files for `wandb sync`.",
        "All modes but `disabled` record in `runs/`, or in `<dir>/runs` with `dir=` or `WANDB_DIR`.",
    ),
    "an id that exists": (
        "Without `resume`, its run is overwritten.",
        "The earlier run stays, and the directory of the new one has a number.",
    ),
    "environment": ("Read once per process.", "Read at each `init`."),
    "artifacts": (
        "Digests are MD5. Saving needs the server. An artifact may be empty.",
        (
            "Digests are SHA-256. Saving, using and linking work offline. An empty artifact and `upsert_artifact` are "
            "refused. Tags and TTL are accepted."
        ),
    ),
    "`history`": ("Samples rows at random.", "Takes evenly spaced rows."),
    "sweeps": (
        "`bayes` is a Gaussian process; a server chooses.",
        (
            "`bayes` is Optuna's TPE; agents choose, and share a file. `hyperband` is successive halving; it ends "
            "functions, not programs."
        ),
    ),
    "forks": ("`fork_from` copies a history.", "Refused; `resume_from` works."),
    "`sync_tensorboard`": (
        "Values get steps of their own, and a metric `global_step`.",
        "Values have the steps of the writer. Media and hyperparameters are recorded as well.",
    ),
    "system metrics": ("Recorded.", "Not recorded; the callback `resource_monitor` of hookline does that."),
    "other frameworks": (
        "`wandb.integration` has callbacks.",
        "Refused, with the name of hookline's integration. The loggers that frameworks have for wandb work.",
    ),
}
"""Where the drop-in differs from wandb: what wandb does, and what hookline does."""


@dataclass(frozen=True)
class Expected:
    """What a pattern must return and record; parts that are not given are not compared.

    Attributes:
        returns: What the function returns.
        rows: The rows of the last run, each with ``_step``; media as the keys in `SHOWN`.
        summary: Values of the last run's summary.
        config: Values of the last run's configuration.
        failed: Whether the last run is recorded as failed.
        runs: How many runs are recorded.
    """

    returns: Any = ANY
    rows: Any = ANY
    summary: Any = ANY
    config: Any = ANY
    failed: Any = ANY
    runs: Any = ANY

    def parts(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not (isinstance(value, str) and value == ANY)}


@dataclass(frozen=True)
class Pattern:
    """A pattern.

    Attributes:
        area: What it is about: ``init``, ``log``, ...
        title: How the table calls it.
        function: The code.
        expected: What it returns and records.
        environment: Variables that are set before wandb is set up.
        differs: What the drop-in returns and records instead, and which of `DIFFERENCES` that is.
        needs: What wandb lacks to do it, offline and with what the tests install.
    """

    area: str
    title: str
    function: Callable[[Any], Any]
    expected: Expected
    environment: dict[str, str] = field(default_factory=dict)
    differs: tuple[Expected, str] | None = None
    needs: str = ""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def expected_of_drop_in(self) -> Expected:
        return self.expected if self.differs is None else self.differs[0]


PATTERNS: list[Pattern] = []


def pattern(area: str, title: str, **options: Any) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    about = {name: options.pop(name) for name in ("environment", "differs", "needs") if name in options}

    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        PATTERNS.append(Pattern(area, title, function, Expected(**options), **about))
        return function

    return add


def error_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> str:
    """The name of the exception that a call raises; empty if it raises none."""
    try:
        function(*args, **kwargs)
    except Exception as error:
        return type(error).__name__
    return ""


def table_data(table: Any) -> list[list[Any]]:
    return [[cell.item() if hasattr(cell, "item") else cell for cell in row] for row in table.data]


# init and the run


@pattern(
    "init",
    "`init(project=, name=, config=)`",
    returns=["vision", "baseline", 0.1],
    config={"lr": 0.1, "layers": [1, 2]},
)
def init_with_project_name_and_config(wandb):
    run = wandb.init(project="vision", name="baseline", config={"lr": 0.1, "layers": [1, 2]})
    found = [run.project, run.name, run.config["lr"]]
    wandb.log({"a": 1})
    run.finish()
    return found


@pattern("init", "`init(config=args)`, a namespace of argparse", config={"lr": 0.5, "model": "tiny"})
def init_with_argparse_namespace(wandb):
    args = argparse.Namespace(lr=0.5, model="tiny")
    wandb.init(project="p", config=args)
    wandb.log({"a": 1})
    wandb.finish()


@pattern("init", '`init(config="file.yaml")`', returns=3, config={"epochs": 3})
def init_with_yaml_file(wandb):
    Path("settings.yaml").write_text("wandb_version: 1\nepochs:\n  value: 3\n")
    run = wandb.init(project="p", config="settings.yaml")
    found = run.config.epochs
    wandb.log({"a": 1})
    run.finish()
    return found


@pattern("init", "`init(config_exclude_keys=)`", config={"lr": 0.1})
def init_with_excluded_keys(wandb):
    wandb.init(project="p", config={"lr": 0.1, "data": "secret"}, config_exclude_keys=["data"])
    wandb.log({"a": 1})
    wandb.finish()


@pattern(
    "init",
    "`init(group=, job_type=, tags=, notes=)`",
    returns=["sweep-1", "eval", ["a", "b"], "a note"],
)
def init_with_group_and_tags(wandb):
    run = wandb.init(project="p", group="sweep-1", job_type="eval", tags=["a", "b"], notes="a note")
    found = [run.group, run.job_type, list(run.tags), run.notes]
    run.finish()
    return found


@pattern("init", "`init(id=, entity=)`, `run.id`, `entity`, `path`", returns=["my-id", "team", "team/p/my-id"])
def init_with_id(wandb):
    run = wandb.init(project="p", id="my-id", entity="team")
    found = [run.id, run.entity, run.path]
    run.finish()
    return found


@pattern("init", "`with init(...) as run:`", returns=[True, True], rows=[{"loss": 1, "_step": 0}], failed=False)
def init_as_context(wandb):
    with wandb.init(project="p") as run:
        run.log({"loss": 1})
        is_global = wandb.run is run
    return [is_global, wandb.run is None]


@pattern("init", "an exception inside `with init(...)`", returns="ValueError", failed=True)
def init_as_context_with_an_exception(wandb):
    def train():
        with wandb.init(project="p"):
            raise ValueError("diverged")

    return error_of(train)


@pattern("init", "`init` again returns the active run", returns=True, runs=1)
def init_twice(wandb):
    first = wandb.init(project="p")
    second = wandb.init(project="p")
    second.finish()
    return first is second


@pattern("init", "`init(reinit=True)` in a loop", returns=3, runs=3, rows=[{"fold": 2, "_step": 0}])
def init_in_a_loop(wandb):
    ids = set()
    for fold in range(3):
        run = wandb.init(project="p", name=f"fold-{fold}", reinit=True)
        ids.add(run.id)
        wandb.log({"fold": fold})
    wandb.finish()
    return len(ids)


@pattern("init", '`init(reinit="create_new")` beside another run', returns=[True, False], runs=2)
def init_beside_another_run(wandb):
    first = wandb.init(project="p")
    second = wandb.init(project="p", reinit="create_new")
    second.log({"b": 1})
    found = [wandb.run is first, wandb.run is second]
    second.finish()
    first.finish()
    return found


@pattern("init", '`init(mode="disabled")`', returns=[True, 0, 1], runs=0)
def init_disabled(wandb):
    run = wandb.init(project="p", mode="disabled", config={"lr": 1})
    wandb.log({"loss": 1})
    wandb.log({"loss": 2})
    run.summary["best"] = 1
    found = [run.disabled, run.step, wandb.config.lr]
    wandb.finish()
    return found


@pattern("init", "`init(settings=wandb.Settings(...))`", returns=["named", True], runs=1)
def init_with_settings(wandb):
    settings = wandb.Settings(run_name="named", silent=True, console="off", _disable_stats=True)
    run = wandb.init(project="p", settings=settings)
    found = [run.name, run.settings.silent]
    run.finish()
    return found


@pattern(
    "init",
    '`init(resume="allow", id=)` continues the run',
    returns=[True, 2],
    needs=SERVER,
    runs=1,
    rows=[{"loss": 3, "_step": 0}, {"loss": 2, "_step": 1}, {"loss": 1, "_step": 2}],
)
def init_resumed(wandb):
    wandb.init(project="p", id="resumed-run", config={"lr": 1})
    wandb.log({"loss": 3})
    wandb.log({"loss": 2})
    wandb.finish()
    run = wandb.init(project="p", id="resumed-run", resume="allow")
    found = [run.resumed, run.step]
    wandb.log({"loss": 1})
    wandb.finish()
    return found


@pattern(
    "init",
    "`WANDB_PROJECT`, `NAME`, `TAGS`, `NOTES`, `RUN_GROUP`, `JOB_TYPE`",
    environment={
        "WANDB_PROJECT": "from-env",
        "WANDB_NAME": "env-name",
        "WANDB_TAGS": "x,y",
        "WANDB_NOTES": "env notes",
        "WANDB_RUN_GROUP": "env-group",
        "WANDB_JOB_TYPE": "env-type",
    },
    returns=["from-env", "env-name", ["x", "y"], "env notes", "env-group", "env-type"],
)
def init_from_environment(wandb):
    run = wandb.init()
    found = [run.project, run.name, list(run.tags), run.notes, run.group, run.job_type]
    run.finish()
    return found


@pattern("init", "`WANDB_MODE=disabled`", environment={"WANDB_MODE": "disabled"}, returns=True, runs=0)
def init_disabled_by_environment(wandb):
    run = wandb.init(project="p")
    wandb.log({"loss": 1})
    wandb.finish()
    return run.disabled


@pattern("init", "`login()`, then `init`", environment={"WANDB_API_KEY": "0" * 40}, rows=[{"a": 1, "_step": 0}])
def init_after_login(wandb):
    wandb.login()
    wandb.init(project="p")
    wandb.log({"a": 1})
    wandb.finish()


@pattern("init", "`run.name`, `tags` and `notes` set later", returns=["renamed", ["a", "new"], "later"])
def run_changed_later(wandb):
    run = wandb.init(project="p", tags=["a"])
    run.name = "renamed"
    run.tags += ("new",)
    run.notes = "later"
    found = [run.name, list(run.tags), run.notes]
    run.finish()
    return found


@pattern("init", "`wandb.run` and `wandb.log` before `init`", returns=[True, "Error", "Error"], runs=0)
def used_before_init(wandb):
    return [wandb.run is None, error_of(wandb.log, {"a": 1}), error_of(lambda: wandb.config.lr)]


@pattern("init", "`run.log` after `finish`", returns=["UsageError", True])
def used_after_finish(wandb):
    run = wandb.init(project="p")
    run.finish()
    return [error_of(run.log, {"a": 1}), wandb.run is None]


@pattern("init", "`finish(exit_code=1)`", rows=[{"a": 1, "_step": 0}], failed=True)
def finished_with_exit_code(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1})
    wandb.finish(exit_code=1)


# log


@pattern(
    "log",
    "`log({...})`: steps by themselves",
    rows=[{"loss": 0.5, "_step": 0}, {"loss": 0.25, "acc": 0.1, "_step": 1}, {"loss": 0.125, "_step": 2}],
    summary={"loss": 0.125, "acc": 0.1, "_step": 2},
)
def log_scalars(wandb):
    wandb.init(project="p")
    wandb.log({"loss": 0.5})
    wandb.log({"loss": 0.25, "acc": 0.1})
    wandb.log({"loss": 0.125})
    wandb.finish()


@pattern(
    "log",
    "`log({...}, step=n)` gathers at a step",
    rows=[{"a": 1, "b": 2, "_step": 0}, {"a": 3, "_step": 10}, {"a": 4, "c": 5, "_step": 20}],
)
def log_with_step(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1}, step=0)
    wandb.log({"b": 2}, step=0)
    wandb.log({"a": 3}, step=10)
    wandb.log({"a": 4}, step=20)
    wandb.log({"c": 5}, step=20)
    wandb.finish()


@pattern("log", "`log({...}, commit=False)`", rows=[{"a": 1, "b": 2, "_step": 0}, {"c": 3, "_step": 1}])
def log_without_commit(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1}, commit=False)
    wandb.log({"b": 2})
    wandb.log({"c": 3}, commit=False)
    wandb.finish()


@pattern("log", "a name twice at one step: the last counts", rows=[{"a": 2, "_step": 5}], summary={"a": 2})
def log_twice_at_a_step(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1}, step=5)
    wandb.log({"a": 2}, step=5)
    wandb.finish()


@pattern(
    "log",
    "`log(step=)` mixed with `log()`, `run.step`",
    returns=[4, 5],
    rows=[{"a": 1, "b": 2, "_step": 3}, {"c": 3, "_step": 4}],
)
def log_mixed(wandb):
    run = wandb.init(project="p")
    wandb.log({"a": 1}, step=3)
    wandb.log({"b": 2})
    steps = [run.step]
    wandb.log({"c": 3})
    steps.append(run.step)
    wandb.finish()
    return steps


@pattern(
    "log",
    "`log(step=)` with a lower step",
    rows=[{"a": 1, "_step": 5}, {"a": 3, "_step": 6}],
    summary={"a": 3},
    differs=(
        Expected(rows=[{"a": 2, "_step": 2}, {"a": 1, "_step": 5}, {"a": 3, "_step": 6}], summary={"a": 3}),
        "lower steps",
    ),
)
def log_at_a_lower_step(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1}, step=5)
    wandb.log({"a": 2}, step=2)
    wandb.log({"a": 3}, step=6)
    wandb.finish()


@pattern("log", "nested dicts", rows=[{"train.loss": 1, "train.deep.x": 2, "_step": 0}], summary={"train.loss": 1})
def log_nested(wandb):
    wandb.init(project="p")
    wandb.log({"train": {"loss": 1, "deep": {"x": 2}}})
    wandb.finish()


@pattern("log", "numbers of NumPy and torch", rows=[{"f": 0.5, "i": 3, "t": 1.5, "z": 2.5, "b": True, "_step": 0}])
def log_numbers_of_libraries(wandb):
    import numpy as np
    import torch

    wandb.init(project="p")
    values = {"f": np.float32(0.5), "i": np.int64(3), "t": torch.tensor(1.5, requires_grad=True), "z": np.array(2.5)}
    wandb.log({**values, "b": torch.tensor(True)})
    wandb.finish()


@pattern(
    "log", "lists and small arrays", rows=[{"l": [1, 2], "a": [0, 1, 2], "m": [[0.0, 0.0], [0.0, 0.0]], "_step": 0}]
)
def log_lists(wandb):
    import numpy as np
    import torch

    wandb.init(project="p")
    wandb.log({"l": [1, 2], "a": np.arange(3), "m": torch.zeros(2, 2)})
    wandb.finish()


@pattern(
    "log",
    "a large array becomes a histogram",
    rows=[{"w": {"_type": "histogram", "values": [2, 2] + [0] * 29 + [36]}, "_step": 0}],
)
def log_large_array(wandb):
    import numpy as np

    wandb.init(project="p")
    wandb.log({"w": np.array([0.0, 0.0, 1.0, 1.0] + [31.0] * 36)})
    wandb.finish()


@pattern(
    "log",
    "texts, truth values, None, NaN",
    rows=[{"s": "text", "t": True, "z": None, "n": "nan", "i": "inf", "_step": 0}],
)
def log_texts_and_nonfinite(wandb):
    wandb.init(project="p")
    wandb.log({"s": "text", "t": True, "z": None, "n": math.nan, "i": math.inf})
    wandb.finish()


@pattern(
    "log", "what is no dict of names", returns=["TypeError", "TypeError", "TypeError"], rows=[{"a": 1, "_step": 0}]
)
def log_invalid(wandb):
    wandb.init(project="p")
    found = [error_of(wandb.log, [1, 2]), error_of(wandb.log, {1: 2}), error_of(wandb.log, {"o": object()})]
    wandb.log({"a": 1})
    wandb.finish()
    return found


@pattern("log", "`log` in a thread", rows=[{"a": 1, "_step": 0}, {"b": 2, "_step": 1}])
def log_in_a_thread(wandb):
    wandb.init(project="p")
    wandb.log({"a": 1})
    thread = threading.Thread(target=lambda: wandb.log({"b": 2}))
    thread.start()
    thread.join()
    wandb.finish()


# define_metric and the summary


@pattern(
    "define_metric",
    '`define_metric("*", step_metric=)`',
    rows=[{"step": 1, "_step": 0}, {"loss": 2, "step": 1, "_step": 1}, {"val/a": 3, "step": 5, "_step": 2}],
)
def define_step_metric(wandb):
    run = wandb.init(project="p")
    run.define_metric("step")
    run.define_metric("*", step_metric="step", step_sync=True)
    wandb.log({"step": 1})
    wandb.log({"loss": 2})
    wandb.log({"val/a": 3, "step": 5})
    wandb.finish()


@pattern(
    "define_metric", '`define_metric(summary="min,max,mean")`', summary={"loss.min": 1, "loss.max": 3, "loss.mean": 2}
)
def define_summary(wandb):
    run = wandb.init(project="p")
    run.define_metric("loss", summary="min,max,mean")
    for value in (3, 1, 2):
        wandb.log({"loss": value})
    wandb.finish()


@pattern("define_metric", '`define_metric("val/*", summary="max")`', summary={"val/acc.max": 0.75, "loss": 1})
def define_summary_by_glob(wandb):
    run = wandb.init(project="p")
    run.define_metric("val/*", summary="max")
    wandb.log({"val/acc": 0.75, "loss": 2})
    wandb.log({"val/acc": 0.5, "loss": 1})
    wandb.finish()


@pattern("define_metric", '`define_metric(summary="none")`', returns=["loss"], summary={"loss": 1})
def define_no_summary(wandb):
    run = wandb.init(project="p")
    run.define_metric("debug", summary="none")
    wandb.log({"debug": 3, "loss": 1})
    found = [name for name in dict(run.summary) if not name.startswith("_")]
    wandb.finish()
    return found


@pattern(
    "summary", '`summary["best"] = x`, `summary.update`', returns=[0.9, 0.9], summary={"best": 0.9, "n": 2, "acc": 0.5}
)
def summary_set(wandb):
    run = wandb.init(project="p")
    wandb.log({"acc": 0.5})
    wandb.run.summary["best"] = 0.9
    run.summary.update({"n": 2})
    found = [run.summary["best"], wandb.summary.get("best")]
    wandb.finish()
    return found


@pattern("summary", "a logged value over one that was set", returns=["KeyError", None], summary={"best": 7})
def summary_overwritten(wandb):
    run = wandb.init(project="p")
    run.summary["best"] = 1
    wandb.log({"best": 7})
    found = [error_of(lambda: run.summary["missing"]), run.summary.get("missing")]
    wandb.finish()
    return found


# config


@pattern(
    "config",
    '`config.lr`, `config["lr"]`, `config.x = 1`',
    returns=[0.1, True, "AttributeError"],
    config={"lr": 0.1, "x": 1, "y": 2},
)
def config_items_and_attributes(wandb):
    wandb.init(project="p", config={"lr": 0.1})
    wandb.config.x = 1
    wandb.config["y"] = 2
    found = [wandb.config.lr, "x" in wandb.config, error_of(lambda: wandb.config.missing)]
    wandb.log({"a": 1})
    wandb.finish()
    return found


@pattern(
    "config", "`config.update(..., allow_val_change=True)`", returns=["ConfigError", 0.2], config={"lr": 0.2, "new": 1}
)
def config_changed(wandb):
    run = wandb.init(project="p", config={"lr": 0.1})
    found = [error_of(run.config.update, {"lr": 0.2})]
    run.config.update({"lr": 0.2, "new": 1}, allow_val_change=True)
    found.append(run.config.lr)
    wandb.log({"a": 1})
    wandb.finish()
    return found


@pattern(
    "config",
    "nested settings, classes, tuples and sets",
    config={"model": {"dim": 4, "sizes": [1, 2]}, "cls": "collections.OrderedDict"},
)
def config_of_objects(wandb):
    import collections

    wandb.init(project="p", config={"model": {"dim": 4, "sizes": (1, 2)}, "cls": collections.OrderedDict})
    wandb.log({"a": 1})
    wandb.finish()


# data types


@pattern(
    "media",
    "`Table`: rows, columns, `get_column`",
    returns=[["a", "b", "c"], [1, 2], [[1, "x", True], [2, "y", False]]],
)
def table_built(wandb):
    table = wandb.Table(columns=["a", "b"], data=[[1, "x"]])
    table.add_data(2, "y")
    table.add_column("c", [True, False])
    return [table.columns, table.get_column("a"), table_data(table)]


@pattern("media", "`Table`: rows that do not fit", returns=["ValueError", "TypeError", ""])
def table_refuses_rows(wandb):
    table = wandb.Table(columns=["a", "b"], data=[[1, "x"]])
    mixed = wandb.Table(columns=["a", "b"], data=[[1, "x"]], allow_mixed_types=True)
    return [error_of(table.add_data, 1), error_of(table.add_data, "text", "y"), error_of(mixed.add_data, "text", 2)]


@pattern(
    "media", '`log({"t": wandb.Table(...)})`', rows=[{"t": {"_type": "table-file", "ncols": 2, "nrows": 2}, "_step": 0}]
)
def table_logged(wandb):
    wandb.init(project="p")
    wandb.log({"t": wandb.Table(columns=["a", "b"], data=[[1, "x"], [2, "y"]])})
    wandb.finish()


@pattern(
    "media",
    "`Image(array, caption=)`",
    rows=[{"i": {"_type": "image-file", "width": 6, "height": 4, "caption": "c", "format": "png"}, "_step": 0}],
)
def image_logged(wandb):
    import numpy as np

    wandb.init(project="p")
    wandb.log({"i": wandb.Image(np.zeros((4, 6, 3), dtype=np.uint8), caption="c")})
    wandb.finish()


@pattern(
    "media",
    "a list of images, of Pillow and torch",
    rows=[{"l": {"_type": "images/separated", "count": 2, "width": 5, "captions": ["a", "b"]}, "_step": 0}],
)
def images_logged(wandb):
    import PIL.Image
    import torch

    wandb.init(project="p")
    images = [wandb.Image(PIL.Image.new("RGB", (5, 4)), caption="a"), wandb.Image(torch.zeros(3, 4, 5), caption="b")]
    wandb.log({"l": images})
    wandb.finish()


@pattern(
    "media",
    "`Image(boxes=, masks=)`",
    returns="TypeError",
    rows=[{"i": {"_type": "image-file", "width": 8, "height": 8}, "_step": 0}],
)
def image_with_overlays(wandb):
    import numpy as np

    wandb.init(project="p")
    position = {"minX": 0.1, "maxX": 0.5, "minY": 0.1, "maxY": 0.5}
    boxes = {"pred": {"box_data": [{"position": position, "class_id": 1}], "class_labels": {1: "cat"}}}
    masks = {"truth": {"mask_data": np.zeros((8, 8), dtype=np.uint8), "class_labels": {0: "road"}}}
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    wandb.log({"i": wandb.Image(pixels, boxes=boxes, masks=masks)})
    wrong = {"pred": {"box_data": [{"position": {"minX": 1}, "class_id": 1}], "class_labels": {}}}
    found = error_of(wandb.Image, pixels, boxes=wrong)
    wandb.finish()
    return found


@pattern(
    "media",
    "`Histogram(np_histogram=)`",
    returns=[1, 2],
    rows=[{"h": {"_type": "histogram", "values": [1, 2], "bins": [1, 2, 3]}, "_step": 0}],
)
def histogram_logged(wandb):
    import numpy as np

    wandb.init(project="p")
    histogram = wandb.Histogram(np_histogram=np.histogram([1, 2, 3], bins=2))
    wandb.log({"h": histogram})
    wandb.finish()
    return [int(count) for count in histogram.histogram]


@pattern(
    "media", "`Video(frames, fps=)`", needs="the package moviepy", rows=[{"v": {"_type": "video-file"}, "_step": 0}]
)
def video_logged(wandb):
    import numpy as np

    wandb.init(project="p")
    wandb.log({"v": wandb.Video(np.zeros((3, 3, 8, 8), dtype=np.uint8), fps=4, format="gif")})
    wandb.finish()


@pattern("media", "`Html`, `Plotly`", rows=[{"h": {"_type": "html-file"}, "p": {"_type": "plotly-file"}, "_step": 0}])
def html_and_plotly_logged(wandb):
    import plotly.graph_objects as go

    wandb.init(project="p")
    wandb.log({"h": wandb.Html("<b>text</b>"), "p": go.Figure(go.Scatter(x=[1], y=[2]))})
    wandb.finish()


LINE_TABLE = {"c_table": {"_type": "table-file", "ncols": 2, "nrows": 1}}
MATRIX_TABLE = {"m_table": {"_type": "table-file", "ncols": 3, "nrows": 4}}
FIGURES = {name: {"_type": "plotly-file"} for name in "cm"}
MATRIX = [["a", "a", 1.0], ["a", "b", 0.0], ["b", "a", 1.0], ["b", "b", 1.0]]


@pattern(
    "media",
    "`plot.line`, `plot.confusion_matrix`",
    returns=[[1, 2], MATRIX],
    rows=[{**LINE_TABLE, **MATRIX_TABLE, "_step": 0}],
    differs=(
        Expected(returns=[[1, 2], MATRIX], rows=[{**FIGURES, **LINE_TABLE, **MATRIX_TABLE, "_step": 0}]),
        "charts",
    ),
)
def charts_logged(wandb):
    wandb.init(project="p")
    line = wandb.plot.line(wandb.Table(columns=["x", "y"], data=[[1, 2]]), "x", "y", title="T")
    matrix = wandb.plot.confusion_matrix(y_true=[0, 1, 1], preds=[0, 1, 0], class_names=["a", "b"])
    wandb.log({"c": line, "m": matrix})
    found = [line.table.data[0], table_data(matrix.table)]
    wandb.finish()
    return found


# artifacts, files, and the rest


@pattern(
    "artifacts",
    "`Artifact`: `add_file`, `new_file`, `add_dir`",
    returns=[["dir/a.txt", "made.txt", "w.bin"], 8, "model", "ValueError"],
)
def artifact_built(wandb):
    Path("w.bin").write_bytes(b"1234")
    Path("folder").mkdir()
    Path("folder/a.txt").write_text("aa")
    artifact = wandb.Artifact("weights", type="model", metadata={"acc": 0.5})
    artifact.add_file("w.bin")
    artifact.add_dir("folder", name="dir")
    with artifact.new_file("made.txt") as file:
        file.write("mm")
    return [sorted(artifact.manifest.entries), artifact.size, artifact.type, error_of(wandb.Artifact, "a/b", type="x")]


@pattern(
    "artifacts",
    "`log_artifact`, `use_artifact`, `download`",
    needs=SERVER,
    returns=["weights:v0", ["best", "latest"], {"acc": 0.5}, "1234"],
)
def artifact_round_trip(wandb):
    run = wandb.init(project="p")
    Path("w.bin").write_bytes(b"1234")
    artifact = wandb.Artifact("weights", type="model", metadata={"acc": 0.5})
    artifact.add_file("w.bin")
    run.log_artifact(artifact, aliases=["best"])
    artifact.wait()
    found = run.use_artifact("weights:best")
    folder = Path(found.download("downloaded"))
    wandb.finish()
    return [found.name, sorted(found.aliases), found.metadata, (folder / "w.bin").read_text()]


@pattern("files", "`save(path)`", returns=["sub/notes.txt", "hello"])
def file_saved(wandb):
    run = wandb.init(project="p")
    Path("sub").mkdir()
    Path("sub/notes.txt").write_text("hello")
    [saved] = run.save("sub/*.txt", policy="now")
    found = [os.path.relpath(saved, run.dir), Path(saved).read_text()]
    wandb.finish()
    return found


@pattern(
    "watch",
    '`watch(model, log="gradients")`',
    rows=[
        {"gradients/weight": {"_type": "histogram"}, "gradients/bias": {"_type": "histogram"}, "loss": 1, "_step": 0}
    ],
)
def gradients_watched(wandb):
    import torch

    wandb.init(project="p")
    model = torch.nn.Linear(2, 2)
    wandb.watch(model, log="gradients", log_freq=1)
    model(torch.ones(1, 2)).sum().backward()
    wandb.log({"loss": 1})
    wandb.unwatch(model)
    wandb.finish()


@pattern("alert", "`alert(title=, text=, level=)`", returns=["", "ValueError"])
def alert_sent(wandb):
    wandb.init(project="p")
    level = wandb.AlertLevel.WARN
    found = [
        error_of(wandb.alert, title="low", text="acc is low", level=level),
        error_of(wandb.alert, "t", "x", level="LOUD"),
    ]
    wandb.finish()
    return found


@pattern(
    "api", "`Api().run(path)`: `history`, `summary`, `config`", needs=SERVER, returns=[[3, 2, 1], 1, 0.1, "finished"]
)
def api_reads_a_run(wandb):
    run = wandb.init(project="p", config={"lr": 0.1})
    for loss in (3, 2, 1):
        wandb.log({"loss": loss})
    path = run.path
    wandb.finish()
    found = wandb.Api().run(path)
    losses = [row["loss"] for row in found.scan_history(keys=["loss"])]
    return [losses, found.summary["loss"], found.config["lr"], found.state]


@pattern("sweep", "`sweep`, `agent`: a grid", needs=SERVER, returns=[[1, "a"], [1, "b"], [2, "a"], [2, "b"]], runs=4)
def sweep_over_a_grid(wandb):
    seen = []

    def train():
        with wandb.init() as run:
            seen.append([run.config.x, run.config.y])
            run.log({"loss": run.config.x})

    config = {"method": "grid", "metric": {"name": "loss", "goal": "minimize"}}
    sweep_id = wandb.sweep(
        {**config, "parameters": {"x": {"values": [1, 2]}, "y": {"values": ["a", "b"]}}}, project="p"
    )
    wandb.agent(sweep_id, function=train)
    return sorted(seen)
