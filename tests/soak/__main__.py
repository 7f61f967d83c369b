"""``python -m soak --minutes 10``: the exit status is 1 if a row is missing or doubled anywhere."""

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from soak.display import Display, table
from soak.layout import OFFLINE, SLOW
from soak.session import Result, Soak, as_json


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long the training is abused")
    parser.add_argument("--seed", type=int, help="of the faults and of the training; one of chance by default")
    parser.add_argument("--json", action="store_true", help="print one object")
    parser.add_argument("--sinks", default=",".join((*OFFLINE, *SLOW)), help="which sinks are on, with commas")
    parser.add_argument("--keep", action="store_true", help="keep the directory also when all is well")
    options = parser.parse_args()
    seed = random.randrange(10_000) if options.seed is None else options.seed
    home = Path(tempfile.mkdtemp(prefix=f"soak-{seed}-"))
    with Display() as display:
        display.phase(f"soak: {options.minutes:g} minutes, seed {seed}, in {home}")
        soak = Soak(
            home, seconds=options.minutes * 60, seed=seed, sinks=tuple(options.sinks.split(",")), display=display
        )
        result = None
        try:
            result = soak.run()
        finally:
            is_kept = result is None or not result.is_right or options.keep
            soak.close(keep=is_kept)
            if is_kept:
                print(f"kept: {home}", file=sys.stderr)
            else:
                shutil.rmtree(home, ignore_errors=True)
    if options.json:
        print(as_json(result))
    else:
        report(result)
    return 0 if result.is_right else 1


def report(result: Result) -> None:
    out = Console()
    out.print(table(result.findings))
    endings = ", ".join(f"{count} {word}" for word, count in result.endings.items())
    out.print(
        f"{result.sessions} sessions ({endings}), {result.steps:,} steps, {result.seconds:,.0f} s, seed {result.seed}"
    )
    out.print(f"{sum(result.faults.values())} faults: {', '.join(f'{n} {c}' for n, c in result.faults.items())}")
    out.print(f"{result.lost:,} records were lost to a full disk, counted, and recorded again")
    out.print(f"{result.looks} looks at the store")
    for failure in dict.fromkeys(result.look_failures):
        out.print(f"a look at the store or the server failed: {failure}", style="red")
    for text in (f"{f.name}: {example}" for f in result.findings if not f.is_right for example in f.examples):
        out.print(text, style="red")
    for text in result.skipped:
        out.print(f"skipped: {text}", style="yellow")


if __name__ == "__main__":
    sys.exit(main())
