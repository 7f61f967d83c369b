"""Every command that shows what was recorded: control characters in it are shown, not obeyed."""

import json
import subprocess
import sys

import pytest

import hookline as hl
from hookline._record.terminal import printable_json

EVIL = "\x1b]0;owned\x07\x9b2J\r\u202eloss"
COMMANDS = [
    *(["runs", "list", *json_] for json_ in ([], ["--json"])),
    *(["runs", "show", "latest", *json_] for json_ in ([], ["--json"])),
    *(["runs", "compare", "latest", "OTHER", *json_] for json_ in ([], ["--json"])),
    *(["runs", "tail", "latest", "--no-follow", "--events", *json_] for json_ in ([], ["--json"])),
    *(["runs", "verify", *json_] for json_ in ([], ["--json"])),
    *(["runs", "sync", "latest", *json_] for json_ in ([], ["--json"])),
    *(["sql", "SELECT * FROM metrics", "--format", form] for form in ("table", "csv", "json")),
    *(["sql", "SELECT * FROM samples", "--format", form] for form in ("table", "csv", "json")),
    *(["sql", "SELECT * FROM events", "--format", form] for form in ("table", "csv", "json")),
    ["sql", f"SELECT '{EVIL}' AS \"{EVIL}\"", "--format", "csv"],
    ["runs", "show", EVIL],
    ["runs", "list", "--root", EVIL],
    ["runs", "delete", "latest", "--dry-run"],
]


def evil_run(*, summary=False):
    """A run with control characters in everything that has a name or a text."""

    class Failing(hl.Callback):
        name = EVIL

        def on_step_end(self, loop, step_idx):
            raise ValueError(EVIL)

    with hl.run(EVIL, config={EVIL: EVIL}, sinks=["csv"], callbacks=[Failing()], summary=summary) as run:
        for _ in run.steps(3):
            run.log({EVIL: 1.0, f"text/{EVIL}": EVIL})
        run.recorder.event(EVIL, text=EVIL)
        run.recorder.status("running", EVIL)
        run.recorder.samples([{"prompt": EVIL, "completion": EVIL}])
        run.summary[EVIL] = EVIL
        run.request_stop(EVIL)
    saved = run.dir / "sinks" / "csv.json"
    changed = json.loads(saved.read_text()) | {"error": EVIL, "status": "refused"}
    (run.dir / "sinks" / f"{EVIL.replace('/', '')}.json").write_text(json.dumps(changed))
    return run


def obeyed(text):
    return {character for character in text if not character.isprintable()} - {"\n"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).encode("unicode_escape").decode())
def test_command_shows_control_characters_of_names_and_texts(cli, command):
    with hl.run("other", summary=False) as other:
        other.log(loss=1.0)
    evil_run()
    result = cli(*(other.dir.name if word == "OTHER" else word for word in command))
    assert obeyed(result.output) == set()
    assert result.output.strip()


def test_summary_of_a_run_shows_control_characters(capfd):
    evil_run(summary=True)
    said = capfd.readouterr().err
    assert (obeyed(said.partition(" after 3 steps")[2]), "owned" in said) == (set(), True)


PROGRAM = """
import hookline as hl

for callback in ("progress_bar", "print_progress", "logger"):
    with hl.run("evil", callbacks=[callback], summary=False) as run:
        for _ in run.steps(10):
            run.log({f"{callback}/EVIL": 1.0})
"""


def test_progress_of_a_run_shows_control_characters(tmp_path):
    program = [sys.executable, "-c", PROGRAM.replace("EVIL", EVIL.encode("unicode_escape").decode())]
    said = subprocess.run(program, cwd=tmp_path, check=True, timeout=200, stderr=subprocess.STDOUT, stdout=-1).stdout
    text = said.decode()
    shown = [f"{callback}/\\x1b" in text for callback in ("progress_bar", "print_progress", "logger")]
    assert (obeyed(text), shown) == (set(), [True] * 3)


def test_printable_json_means_the_same():
    document = json.dumps({EVIL: [EVIL, "\U000e0001", "é"]}, ensure_ascii=False)
    shown = printable_json(document)
    assert (json.loads(shown), obeyed(shown), "é" in shown) == (json.loads(document), set(), True)
