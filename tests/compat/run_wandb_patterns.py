"""Runs the patterns of `wandb_patterns` with wandb, hookline's drop-in or trackio, and writes what each recorded.

    python tests/compat/run_wandb_patterns.py hookline --only log_scalars --output results.json

Records are read as their owners write them: wandb's from its run files once its process has ended, hookline's through
``Api``, trackio's from its database. Rows are compared without times; of media only what stands in `SHOWN`.
"""

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).parents[1]))
from compat.wandb_patterns import PATTERNS, Expected, Pattern

SHOWN = ("_type", "bins", "caption", "captions", "count", "format", "height", "ncols", "nrows", "values", "width")
"""What is compared of a value of media."""
TIMES = ("_timestamp", "_runtime", "_wandb")


class Record(dict[str, Any]):
    """The rows, the summary, the configuration and the end of a run, as plain values."""


class Package(Protocol):
    """A package that patterns run with."""

    module: Any

    def fresh(self) -> None:
        """Forget what was read from the environment."""

    def begin(self, folder: Path) -> None:
        """A pattern begins, in this directory."""

    def close(self) -> None:
        """All patterns have ended."""

    def records(self, folder: Path) -> list[Record]:
        """The runs that a pattern recorded, in order; called when all patterns have ended."""


class Wandb:
    """wandb, offline."""

    def __init__(self) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="wandb-"))
        settings = {"MODE": "offline", "SILENT": "true", "CONSOLE": "off", "DISABLE_GIT": "true"}
        os.environ.update({f"WANDB_{name}": value for name, value in settings.items()})
        # Not the working directory: wandb reads it once for all runs of a process.
        os.environ.update({"WANDB_X_DISABLE_STATS": "true", "WANDB_DIR": str(self._home)})
        self.module = importlib.import_module("wandb")
        self._new: dict[Path, list[Path]] = {}
        self._folder: Path | None = None

    def fresh(self) -> None:
        self.module.teardown()

    def begin(self, folder: Path) -> None:
        self._note()
        self._folder = folder

    def close(self) -> None:
        self._note()
        self.module.teardown()

    def _note(self) -> None:
        """Note the runs that the last pattern recorded."""
        if self._folder is not None:
            known = {path for own in self._new.values() for path in own}
            found = self._home.glob("wandb/offline-run-*/run-*.wandb")
            self._new[self._folder] = [path for path in found if path not in known]

    def records(self, folder: Path) -> list[Record]:
        found = [self._record(path) for path in self._new.get(folder, ())]
        return [record for _, record in sorted(found, key=lambda pair: pair[0])]

    def _record(self, path: Path) -> tuple[float, Record]:
        from wandb.proto.wandb_internal_pb2 import Record as WandbRecord

        from hookline.importers.wandb import _records, _values

        record, began = Record(rows=[], summary={}, config={}, failed=None), 0.0
        for _, content in _records(path, _Report()):
            found = WandbRecord.FromString(content)
            match found.WhichOneof("record_type"):
                case "history":
                    record["rows"].append(_values(found.history.item))
                case "run":
                    began = found.run.start_time.seconds + found.run.start_time.nanos / 1e9
                    record["config"] |= _values(found.run.config.update)
                case "config":
                    record["config"] |= _values(found.config.update)
                case "summary":
                    record["summary"] |= _values(found.summary.update)
                case "exit":
                    record["failed"] = bool(found.exit.exit_code)
        return began, record


class _Report:
    def advance(self, *_: Any) -> None:
        pass

    def skip(self, *problem: Any) -> None:
        raise AssertionError(problem)


class Hookline:
    """The drop-in."""

    def __init__(self) -> None:
        os.environ.update({"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_DISABLE_GIT": "true"})
        self.module = importlib.import_module("hookline.compat.wandb")

    def fresh(self) -> None:
        self.module.teardown()

    def begin(self, folder: Path) -> None:
        pass

    def close(self) -> None:
        self.module.teardown()

    def records(self, folder: Path) -> list[Record]:
        root = folder / "runs"
        if not root.is_dir():
            return []
        api = self.module.Api(overrides={"root": root})
        runs = [run for project in api.projects() for run in project.runs()]
        return [
            Record(
                rows=list(run.scan_history()),
                summary=dict(run.summary),
                config=dict(run.config),
                failed=run.state == "failed",
            )
            for run in sorted(runs, key=lambda run: run.created_at)
        ]


class Trackio:
    """trackio, without a server."""

    def __init__(self) -> None:
        self._home = tempfile.mkdtemp(prefix="trackio-")
        os.environ["TRACKIO_DIR"] = self._home
        self.module = importlib.import_module("trackio")
        self._known: set[tuple[str, str]] = set()
        self._new: dict[Path, list[tuple[str, str]]] = {}
        self._folder: Path | None = None

    def fresh(self) -> None:
        pass

    def begin(self, folder: Path) -> None:
        self._note()
        self._folder = folder

    def close(self) -> None:
        self._note()

    def _note(self) -> None:
        """Note the runs that the last pattern recorded."""
        with contextlib.suppress(Exception):
            self.module.finish()
        storage = self._storage()
        there = [(project, run) for project in storage.get_projects() for run in storage.get_runs(project)]
        if self._folder is not None:
            self._new[self._folder] = [each for each in there if each not in self._known]
        self._known.update(there)

    def records(self, folder: Path) -> list[Record]:
        storage = self._storage()
        found = []
        for project, run in self._new.get(folder, ()):
            rows: dict[int, dict[str, Any]] = {}  # it keeps a row for each call
            for row in storage.get_logs(project, run):
                values = {key: self._as_wandb(value) for key, value in row.items() if key not in ("step", "timestamp")}
                rows.setdefault(row["step"], {"_step": row["step"]}).update(values)
            config = {
                key: value for key, value in (storage.get_run_config(project, run) or {}).items() if key[0] != "_"
            }
            ordered = [rows[step] for step in sorted(rows)]
            summary = {key: value for row in ordered for key, value in row.items()}
            found.append(Record(rows=ordered, summary=summary, config=config, failed=None))
        return found

    def _as_wandb(self, value: Any) -> Any:
        """Media in wandb's words, with what can be read from what was kept."""
        if not isinstance(value, Mapping) or not str(value.get("_type")).startswith("trackio."):
            return value
        kind = value["_type"].removeprefix("trackio.")
        shown: dict[str, Any] = {**value, "_type": kind if kind == "histogram" else f"{kind}-file"}
        if kind == "table":
            rows = value["_value"]
            shown |= {"nrows": len(rows), "ncols": len(rows[0]) if rows else 0}
        if kind == "image":
            path = Path(self._home, "media", value["file_path"])
            with importlib.import_module("PIL.Image").open(path) as image:
                shown |= {"width": image.width, "height": image.height, "format": path.suffix.lstrip(".")}
        return shown

    def _storage(self) -> Any:
        return importlib.import_module("trackio.sqlite_storage").SQLiteStorage


PACKAGES: dict[str, Callable[[], Package]] = {"wandb": Wandb, "hookline": Hookline, "trackio": Trackio}


def plain(value: Any) -> Any:
    """A value as JSON, for comparison: NaN and infinity as texts, whole floats as integers, media as `SHOWN`."""
    if isinstance(value, Mapping):
        if "_type" in value:
            return {key: plain(value[key]) for key in SHOWN if key in value}
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return str(value) if not math.isfinite(value) else int(value) if value.is_integer() else value
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested values by names with dots, as W&B shows them; media stay whole."""
    for key, value in values.items():
        if isinstance(value, Mapping) and "_type" not in value and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def run_pattern(each: Pattern, package: Any, folder: Path) -> dict[str, Any]:
    """What a pattern returns, or the error that it raises."""
    before = dict(os.environ)
    home = Path.cwd()
    os.chdir(folder)
    os.environ.update(each.environment)
    if each.environment:
        package.fresh()
    package.begin(folder)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            outcome: dict[str, Any] = {"returns": plain(each.function(package.module))}
    except BaseException as error:
        outcome = {"error": f"{type(error).__name__}: {str(error)[:300]}", "trace": traceback.format_exc()[-1500:]}
    finally:
        os.chdir(home)
        with contextlib.suppress(Exception):
            if getattr(package.module, "run", None) is not None:
                package.module.finish()
        os.environ.clear()
        os.environ.update(before)
        if each.environment:
            package.fresh()
    return outcome


def mismatches(each: Pattern, outcome: Mapping[str, Any], package: str) -> list[str]:
    """What a package does not return or record as it must; trackio may do what wandb does, or what hookline does."""
    if "error" in outcome:
        return [str(outcome["error"])]
    theirs, ours = each.expected, each.expected_of_drop_in
    accepted = {"wandb": [theirs], "hookline": [ours]}.get(package, [theirs, ours])
    return min((_mismatches(expected, outcome) for expected in accepted), key=len)


def _mismatches(expected: Expected, outcome: Mapping[str, Any]) -> list[str]:
    return [
        f"{part}: expected {plain(wanted)!r}, not {outcome.get(part)!r}"
        for part, wanted in expected.parts().items()
        if not _fits(part, plain(wanted), outcome.get(part))
    ]


def _fits(part: str, wanted: Any, found: Any) -> bool:
    if part == "rows":
        same = isinstance(found, list) and len(found) == len(wanted)
        return same and all(map(_row_fits, wanted, found))
    if part == "summary":
        return isinstance(found, dict) and all(found.get(name) == value for name, value in wanted.items())
    return bool(found == wanted)


def _row_fits(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a row has the same values; of media, those that are wanted."""
    if set(wanted) != set(found):
        return False
    for name, value in wanted.items():
        if isinstance(value, dict) and "_type" in value:
            other = found[name]
            if not isinstance(other, dict) or any(other.get(key) != item for key, item in value.items()):
                return False
        elif found[name] != value:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description="Run patterns of wandb, and print their results as JSON.")
    parser.add_argument("package", choices=PACKAGES)
    parser.add_argument("--only", default="", help="the names of patterns, separated by commas")
    parser.add_argument("--output", required=True, help="the file to write")
    options = parser.parse_args()
    wanted = set(filter(None, options.only.split(",")))
    chosen = [each for each in PATTERNS if not wanted or each.name in wanted]
    package = PACKAGES[options.package]()
    with tempfile.TemporaryDirectory() as home:
        results: dict[str, Any] = {}
        folders = {}
        for each in chosen:
            folder = folders[each.name] = Path(home, each.name)
            folder.mkdir()
            results[each.name] = run_pattern(each, package, folder)
        package.close()
        for each in chosen:
            try:
                records = package.records(folders[each.name])
            except Exception as error:
                results[each.name].setdefault("error", f"reading: {type(error).__name__}: {error}")
                continue
            last = records[-1] if records else {"rows": [], "summary": {}, "config": {}, "failed": None}
            rows = [{k: v for k, v in flat(row) if k not in TIMES} for row in last["rows"]]
            summary = {key: value for key, value in flat(last["summary"]) if key.split(".")[0] not in TIMES}
            config = {key: value for key, value in last["config"].items() if key != "_wandb"}
            results[each.name] |= plain({"rows": rows, "summary": summary, "config": config})
            results[each.name] |= {"failed": last["failed"], "runs": len(records)}
    Path(options.output).write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
