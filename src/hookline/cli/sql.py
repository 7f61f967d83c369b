"""``hookline sql``: runs one read-only SELECT over the records of all runs below a root."""

import csv
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from hookline._engine.errors import OptionError
from hookline._record.records import clean
from hookline._record.terminal import one_line, plural, printable, printable_json
from hookline.cli.output import AsJson, console, print_footer, table, wrong_input
from hookline.cli.runs.reference import Root
from hookline.cli.runs.text import number
from hookline.store.query import Result
from hookline.store.query_limits import QueryError
from hookline.store.runs import SQL_SECONDS, Runs, runs

TABLES = {
    "runs": "one row per run: its settings, progress and end",
    "metrics": "one row per logged value; text holds values that are not numbers",
    "metric_names": "one row per name and axis of a run's metrics, with its steps",
    "samples": "one row per completion, with its rewards",
    "sample_uses": "one row per completion and step of the training that learnt from it, or left it out",
    "rewards": "one row per value of a reward function",
    "events": "one row per event or status",
    "hooks": "one row per cost report of a hook",
    "logs": "one row per log line",
    "console": "one row per line of standard output and error, log record or warning",
    "media": "one row per image, histogram, file, ...; a table has one row here",
    "table_rows": "one row per row of a logged table, with its cells as JSON",
    "blobs": "one row per reference to a content-addressed file",
}
_ROWS = 50
"""How many rows a table shows by default."""
_CELL = 80

Query = Annotated[str | None, typer.Argument(help="One SELECT; - reads it from standard input.", show_default=False)]
Format = Annotated[Literal["table", "csv", "json"], typer.Option("--format", help="The output format.")]
Limit = Annotated[
    int | None,
    typer.Option(min=0, help=f"The maximum number of rows; 0 for all. By default {_ROWS} in a table, otherwise all."),
]
Timeout = Annotated[float, typer.Option(help="End the query after this many seconds.", min=0.001)]


def sql_command(
    query: Query = None,
    *,
    root: Root = Path("runs"),
    format: Format = "table",  # noqa: A002 - what the option is called
    limit: Limit = None,
    timeout: Timeout = SQL_SECONDS,
    schema: Annotated[bool, typer.Option("--schema", help="List the tables and their columns.")] = False,
    as_json: AsJson = False,
) -> None:
    """Query runs, metrics, samples, events, media, tables and more with SQL (DuckDB's), read-only."""
    kind = "json" if as_json else format
    with wrong_input(as_json=as_json):
        if schema == (query is not None):
            raise OptionError("Give either a query, or --schema for the tables and columns.")
        found = runs(root)
        if schema:
            _print_schema(described_tables(found), kind)
            return
        text = sys.stdin.read() if query == "-" else query or ""
        try:
            most = limit if limit is not None else _ROWS if kind == "table" else 0
            _query(found, text, kind, most, timeout)
        except QueryError as error:
            tables = "\n".join(f"  {name}({', '.join(columns)})" for name, columns in described_tables(found).items())
            raise QueryError(f"{error}\n\nTables and columns:\n{tables}") from error


def _query(found: Runs, text: str, kind: str, most: int, seconds: float) -> None:
    from hookline.callbacks.progress_display import transient_bar  # here, to keep other commands fast

    result = found.sql(text, limit=most + 1 if most else None, timeout_seconds=seconds)  # checks the query first
    with transient_bar("reading", total=len(found)) as show:  # the first time may take a while
        found.ingest(show)
    columns = result.columns()
    rows = list(zip(*columns.values(), strict=True))
    shown = rows[:most] if most else rows
    if kind == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(map(printable, columns))
        writer.writerows([_csv_cell(value) for value in row] for row in shown)
    elif kind == "json":
        document = [dict(zip(columns, map(_plain, row), strict=True)) for row in shown]
        typer.echo(printable_json(json.dumps(document, indent=2, ensure_ascii=False)))
    else:
        _print_table(list(columns), shown)
    if len(rows) > len(shown):
        print_footer(f"{result.total() - len(shown):,} more rows; --limit 0 prints all.")


def _print_table(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    numbers = [
        name
        for place, name in enumerate(names)
        if any(isinstance(row[place], int | float) and not isinstance(row[place], bool) for row in rows)
    ]
    listing = table(*map(one_line, names), numbers=list(map(one_line, numbers)))
    for row in rows:
        listing.add_row(*map(_cell, row))
    console().print(listing)
    print_footer(plural(len(rows), "row"))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    text = number(value) if isinstance(value, float) and abs(value) < 1e6 else one_line(_flat(value))
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"


def _csv_cell(value: Any) -> Any:
    """A cell with control characters escaped, except line breaks; ``--format json`` keeps text exactly."""
    flat = _flat(value)
    return printable(flat) if isinstance(flat, str) else flat


def _flat(value: Any) -> Any:
    if isinstance(value, dict | list | tuple):
        return json.dumps(_plain(value), ensure_ascii=False)
    return value.isoformat() if isinstance(value, datetime) else value


def _plain(value: Any) -> Any:
    """A JSON-compatible value: times in ISO 8601, dates, decimals and the like as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return clean(value)
    return value.isoformat() if isinstance(value, datetime) else str(value)


def plain_rows(result: Result) -> list[dict[str, Any]]:
    """The rows of a query as JSON-compatible values."""
    return [_plain(row) for row in result.rows()]


def described_tables(found: Runs) -> dict[str, dict[str, str]]:
    """The columns and types of each table."""
    nothing = found.filter(lambda info: False)
    described = {name: nothing.sql(f"DESCRIBE {name}").rows() for name in TABLES}
    return {name: {row["column_name"]: row["column_type"] for row in rows} for name, rows in described.items()}


def _print_schema(schema: dict[str, dict[str, str]], kind: str) -> None:
    if kind == "json":
        typer.echo(json.dumps(schema, indent=2))
        return
    if kind == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["table", "column", "type"])
        writer.writerows([name, column, type_] for name, columns in schema.items() for column, type_ in columns.items())
        return
    for name, columns in schema.items():
        console().print(f"{name}: {TABLES[name]}", style="bold", soft_wrap=True)
        width = max(map(len, columns))
        for column, type_ in columns.items():
            console().print(f"  {column:<{width}}  {type_.lower()}")
