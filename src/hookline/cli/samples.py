"""``hookline samples``: exports samples as training data in the formats of TRL."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from hookline._engine.errors import ConfigError
from hookline._record.records import clean
from hookline._record.terminal import one_line, plural
from hookline.cli.output import AsJson, CommandGroup, console, print_json, wrong_input
from hookline.cli.runs.reference import Root, RunArgument, locate, opened
from hookline.cli.runs.text import bytes_text
from hookline.cli.runs.transfer import STDOUT, replaced
from hookline.store.sample_export import export_rows

app = CommandGroup(help="Export samples as training data.")


@app.command("export")
def export_command(
    run: RunArgument,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file; - is standard output.", show_default=False)],
    format: Annotated[  # noqa: A002 - what the option is called
        Literal["sft", "preference"],
        typer.Option(
            help="sft: messages, or prompt and completion, without samples annotated as bad. preference: prompt, "
            "chosen and rejected for each group of completions, by annotations or else by reward."
        ),
    ] = "sft",
    text: Annotated[str | None, typer.Option(help="Only samples with this text, ignoring case.")] = None,
    lesson: Annotated[str | None, typer.Option(help="Only samples of this lesson; * matches anything.")] = None,
    axis: Annotated[str | None, typer.Option(help="Only samples of this axis: train, eval, rollout, ...")] = None,
    label: Annotated[
        Literal["good", "bad", "any"] | None,
        typer.Option(help="Only samples with this annotation.", show_default=False),
    ] = None,
    reward: Annotated[str | None, typer.Option(help="Apply the limits to this reward function.")] = None,
    min_reward: Annotated[float | None, typer.Option(help="The smallest reward.")] = None,
    max_reward: Annotated[float | None, typer.Option(help="The largest reward.")] = None,
    first_step: Annotated[int | None, typer.Option(help="The first step.")] = None,
    last_step: Annotated[int | None, typer.Option(help="The last step.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The maximum number of samples that are read.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Export a run's samples as JSON lines for supervised fine-tuning or preference learning."""
    with wrong_input(as_json=as_json):
        if output != STDOUT and output.exists() and not force:
            raise ConfigError(f"{output} exists already. Give another file, or --force to replace it.")
        found = opened([locate(root, run)])
        samples = found.samples(
            text=text,
            lesson=lesson,
            axis=axis,
            label=label,
            reward=reward,
            min_reward=min_reward,
            max_reward=max_reward,
            steps=(first_step, last_step),
            limit=limit,
        )
        labels = {key: each.label for key, each in found.annotations().items()}
        lines = (msgspec.json.encode(clean(row)).decode() for row in export_rows(samples, format, labels))
        if output == STDOUT:
            for line in lines:
                typer.echo(line)
            return
        with replaced(output) as aside, aside.open("w", encoding="utf-8") as file:
            rows = sum(1 for _ in map(file.write, (f"{line}\n" for line in lines)))
    size = output.stat().st_size
    if as_json:
        print_json({"run": found[0].id, "format": format, "file": str(output), "rows": rows, "bytes": size})
    else:
        message = f"{plural(rows, 'row')} of {found[0].id} in {output} ({bytes_text(size)})"
        console().print(one_line(message), soft_wrap=True)
