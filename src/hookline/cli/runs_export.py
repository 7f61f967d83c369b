"""``hookline runs export``: what a run recorded, as a file for other tools.

The file is written beside its place and put there when it is complete, so there is never half of one.
"""

import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from hookline.cli.output import AsJson, console, print_json
from hookline.cli.run_reference import Root, RunArgument, locate, opened
from hookline.cli.run_words import bytes_text
from hookline.cli.wrong_input import wrong_input
from hookline.core.errors import ConfigError, MissingExtraError, OptionError
from hookline.record.records import clean
from hookline.record.terminal import one_line
from hookline.store.index import DamagedIndexError
from hookline.store.result import Result
from hookline.store.runs import Runs

FORMATS = ("parquet", "csv", "jsonl")
STDOUT = Path("-")

Format = Annotated[
    Literal["parquet", "csv", "jsonl"] | None,
    typer.Option("--format", help="What to write; by default what the file's name ends with.", show_default=False),
]
What = Annotated[Literal["metrics", "samples", "events", "rewards", "hooks", "logs"], typer.Option(help="Which table.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="The file; - is standard output.", show_default=False)]


def export_command(
    run: RunArgument,
    *,
    output: Output,
    format: Format = None,  # noqa: A002 - what the option is called
    what: What = "metrics",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write what a run recorded to a file: a row a value, sample or event, with the columns of `hookline sql`."""
    with wrong_input(as_json=as_json):
        kind = format or _kind_of(output)
        _check_place(output, kind, force=force)
        found = opened([locate(root, run)])
        result = _result(found, what)
        with _replaced(output) as aside:
            rows = _WRITERS[kind](result, aside)
    if output == STDOUT:
        return
    facts = {"run": found[0].id, "what": what, "format": kind, "file": str(output), "rows": rows}
    if as_json:
        print_json(facts | {"bytes": output.stat().st_size})
    else:
        said = f"{rows:,} rows of {what} of {found[0].id} in {output} ({bytes_text(output.stat().st_size)})"
        console().print(one_line(said), soft_wrap=True)


def _kind_of(output: Path) -> str:
    kind = {".ndjson": "jsonl"}.get(output.suffix, output.suffix.removeprefix("."))
    if kind not in FORMATS:
        raise OptionError(f"{output}: what to write is not known from the name. Give --format: {', '.join(FORMATS)}.")
    return kind


def _check_place(output: Path, kind: str, *, force: bool) -> None:
    if output == STDOUT:
        if kind == "parquet":
            raise OptionError("-o -: Parquet cannot be written to standard output. Give a file, or csv or jsonl.")
        return
    if output.is_dir():
        raise ConfigError(f"{output} is a directory. Give a file.")
    if output.exists() and not force:
        raise ConfigError(f"{output} is there already. Give another file, or --force to replace it.")
    if not output.absolute().parent.is_dir():
        raise ConfigError(f"{output.absolute().parent}: there is no such directory. Make it first.")


def _result(found: Runs, what: str) -> Result:
    if what == "hooks":
        return found.hooks(history=True)
    made: Result = getattr(found, what)()
    return made


@contextmanager
def _replaced(output: Path) -> Iterator[Path]:
    """Where to write; it is put in place if nothing goes wrong."""
    if output == STDOUT:
        yield output
        return
    aside = output.with_name(f".{output.name}.{os.getpid()}.partial")
    try:
        yield aside
        aside.replace(output)
    except DamagedIndexError:
        raise
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from error
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _text_file(path: Path) -> Iterator[IO[str]]:
    if path == STDOUT:
        yield sys.stdout
        sys.stdout.flush()
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file


def _write_csv(result: Result, path: Path) -> int:
    columns = result.columns()
    with _text_file(path) as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows([_cell(value) for value in row] for row in zip(*columns.values(), strict=True))
    return _length(columns)


def _write_jsonl(result: Result, path: Path) -> int:
    columns = result.columns()
    nested = {"data", "extra", "truncated"}
    with _text_file(path) as file:
        for row in zip(*columns.values(), strict=True):
            values = {
                name: json.loads(value) if name in nested and value is not None else clean(value)
                for name, value in zip(columns, row, strict=True)
            }
            file.write(json.dumps(values, ensure_ascii=False) + "\n")
    return _length(columns)


def _write_parquet(result: Result, path: Path) -> int:
    table = result.arrow()
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError:
        raise MissingExtraError("Writing Parquet needs pyarrow. Install it with: pip install pyarrow") from None
    parquet.write_table(table, path)
    return int(table.num_rows)


def _cell(value: Any) -> Any:
    """A value for a table: nested ones as JSON."""
    return json.dumps(clean(value), ensure_ascii=False) if isinstance(value, dict | list) else value


def _length(columns: dict[str, list[Any]]) -> int:
    return len(next(iter(columns.values()), []))


_WRITERS: dict[str, Callable[[Result, Path], int]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
}
