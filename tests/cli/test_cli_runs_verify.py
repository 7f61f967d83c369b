"""``hookline runs verify``: damage that is done to runs is found, and nothing is where none was done."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from finished_runs import journal_file, record

import hookline as hl
from hookline._record.console import ConsoleWriter
from hookline._record.recorder import Recorder
from hookline.cli.runs.verify import verify
from hookline.server import WebServer
from hookline.server.received_blobs import BlobLimits
from hookline.server.root_tokens import Tokens
from hookline.store.run_info import RunLocation


def findings(cli, *arguments):
    """The exit status, and what was found."""
    result = cli("runs", "verify", *arguments, "--json")
    (run,) = json.loads(result.stdout)
    assert run["ok"] == (result.exit_code == 0)
    return result.exit_code, [(finding["kind"], finding["what"]) for finding in run["findings"]]


def checkpointed_run():
    with hl.run("saved", summary=False) as run:
        for step in run.steps(4):
            run.log(loss=1.0)
            if step % 2:
                run.save_checkpoint()
    return run.dir


def long_run(segments=3):
    """A run with several journal files."""
    with hl.run("long", summary=False) as run:
        recorder = Recorder(run.dir, name="side", segment_bytes=4096)
        while len(list((run.dir / "journal").glob("side-*.jsonl"))) < segments:
            recorder.log(loss=1.0)
        recorder.close()
    return run.dir, sorted((run.dir / "journal").glob("side-*.jsonl"))


def test_verify_of_whole_runs_is_quiet_and_exits_with_zero(cli):
    record()
    checkpointed_run()
    result = cli("runs", "verify")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "2 runs, 0 damaged.")
    assert [line.split()[1] for line in result.stdout.splitlines()[:2]] == ["ok", "ok"]
    assert {run["records"] for run in json.loads(cli("runs", "verify", "--json").stdout)} == {5, 8}


def test_verify_of_a_live_run_finds_nothing(cli):
    with hl.run("live", summary=False) as run:
        for _ in run.steps(3):
            run.log(loss=1.0)
        found = findings(cli, run.dir)
    assert found == (0, [])


def test_verify_finds_a_line_that_is_no_record(cli):
    file = journal_file(record())
    lines = file.read_bytes().splitlines(keepends=True)
    lines[2] = b"x" * (len(lines[2]) - 1) + b"\n"
    file.write_bytes(b"".join(lines))
    assert findings(cli) == (1, [("damage", f"journal/{file.name} has 1 line that is not a record, first line 3")])


def changed_digit(lines):
    lines[2] = lines[2].replace(b'"loss":2', b'"loss":7')


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (changed_digit, "{name}: the bytes of line 3 changed since they were written"),
        (lambda lines: lines.pop(2), "{name}: lines are missing: 1 before line 3"),
        (lambda lines: lines.pop(0), "{name}: lines are missing: 1 before line 1"),
        (lambda lines: lines.insert(3, lines[2]), "{name}: line 4 repeated from above"),
        (lambda lines: lines.append(lines[1]), "{name}: line 6 repeated from above"),
        (
            lambda lines: lines.insert(2, b'{"kind":"event","name":"planted"}\n'),
            "{name}: 1 line without a checksum, first line 3",
        ),
        (lambda lines: lines.pop(), "{name} changed since it was complete: its SHA-256 is not the one noted then, in"),
    ],
    ids=["changed digit", "deleted", "deleted first", "doubled", "doubled at the end", "planted", "deleted last"],
)
def test_verify_finds_a_changed_a_deleted_and_a_doubled_line(cli, change, found):
    file = journal_file(record())
    lines = file.read_bytes().splitlines(keepends=True)
    change(lines)
    file.write_bytes(b"".join(lines))
    code, said = findings(cli)
    damage = [what for kind, what in said if kind == "damage"]
    assert (code, len(damage)) == (1, 1)
    assert damage[0].startswith(found.format(name=f"journal/{file.name}"))


@pytest.mark.parametrize(("change", "what"), [(lambda blob: blob.unlink(), "is missing"), (None, "has other content")])
def test_verify_finds_code_that_is_missing_or_changed(cli, change, what):
    for command in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "--allow-empty"]):
        subprocess.run(["git", *command, *(["-m", "first"] if "commit" in command else [])], check=True)
    Path("train.py").write_text("train()\n")
    with hl.run("coded", code="all", summary=False) as run:
        pass
    assert findings(cli, run.dir) == (0, [])
    for blob in Path("runs/.blobs").glob("??/*"):
        blob.chmod(0o644)
        change(blob) if change else flip(blob, 0)
    code, found = findings(cli, run.dir)
    assert (code, [what in each for _, each in found]) == (1, [True])
    assert found[0][1].startswith("'environment.json': ")


def printed_lines(directory, count):
    writer = ConsoleWriter(directory, file_bytes=4096)
    for number in range(count):
        writer.line(f"line {number:05d}", "stdout", float(number))
    writer.close()
    return sorted((directory / "console").glob("*.jsonl"))


def test_verify_of_a_console_whose_middle_was_removed_finds_nothing(cli):
    directory = record()
    files = printed_lines(directory, 3000)
    assert int(files[-1].stem.rpartition("-")[2]) > len(files)
    assert findings(cli, directory) == (0, [])


CONSOLE_DAMAGE = {
    "changed": (lambda files: flip(files[1], 60), "console/{}: the bytes of line 1 changed since they were written"),
    "removed": (lambda files: files[1].unlink(), "console/{} is missing"),
    "cut off": (lambda files: files[1].write_bytes(files[1].read_bytes()[:-9]), "console/{} is cut off"),
}


@pytest.mark.parametrize("how", CONSOLE_DAMAGE)
def test_verify_finds_damage_of_console_lines(cli, how):
    change, what = CONSOLE_DAMAGE[how]
    directory = record()
    files = printed_lines(directory, 200)
    assert findings(cli, directory) == (0, [])
    change(files)
    code, found = findings(cli, directory)
    assert (code, found[0][0]) == (1, "damage")
    assert found[0][1].startswith(what.format(files[1].name))


def test_verify_finds_a_flipped_bit_in_a_checkpoint(cli):
    file = checkpointed_run() / "checkpoints" / "step-00000004" / "state.json"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    said = "the content of state.json changed since it was saved (its SHA-256 differs)"
    assert findings(cli) == (1, [("damage", f"checkpoints/step-00000004 is damaged: {said}")])


@pytest.mark.parametrize("which", [1, -1], ids=["middle", "last"])
def test_verify_finds_a_file_that_was_deleted_and_does_not_count_its_lines_as_well(cli, which):
    _, files = long_run()
    files[which].unlink()
    assert findings(cli) == (1, [("damage", f"journal/{files[which].name} is missing")])


def test_verify_finds_a_file_that_was_cut_off(cli):
    file = journal_file(record())
    end = file.read_bytes().rindex(b"\n", 0, -1) + 1
    with file.open("ab") as opened:
        opened.write(b'{"kind":"stat')
    size = file.stat().st_size - 13
    assert end < size
    assert findings(cli) == (
        1,
        [("damage", f"journal/{file.name} is cut off in the middle of a line, at byte {size:,}")],
    )


def test_verify_of_a_killed_run_with_a_torn_last_line_is_a_note(cli):
    file = journal_file(record())
    lines = file.read_bytes().splitlines(keepends=True)[:-1]  # without its end
    whole = b"".join(lines)
    file.write_bytes(whole + b'{"kind":"metr' + b"\0" * 5000)
    next(file.parent.glob("*.sha256")).unlink()  # a killed process has not noted that the file is complete
    assert findings(cli) == (
        0,
        [
            ("note", f"journal/{file.name} ends in the middle of a line, at byte {len(whole):,}"),
            ("note", "it ended after step 3 without a final status"),
        ],
    )


def test_verify_finds_a_hole_behind_which_there_is_more(cli):
    file = journal_file(record())
    lines = file.read_bytes().splitlines(keepends=True)
    begin = len(lines[0])
    data = b"".join(lines)
    file.write_bytes(data[:begin] + b"\0" * 9000 + data[begin + 9000 :] + lines[-1])
    code, found = findings(cli)
    assert (code, found[0]) == (
        1,
        ("damage", f"journal/{file.name} has a hole at byte {begin:,}"),
    )


def test_verify_finds_missing_files_and_sessions(cli):
    directory, files = long_run()
    files[1].unlink()
    main = journal_file_of(directory, "main")
    main.rename(main.with_name(main.name.replace("main-0000", "main-0001")))
    code, found = findings(cli, directory)
    assert code == 1
    assert ("damage", f"journal/{files[1].name} is missing") in found
    assert ("damage", "journal/main-0000-*.jsonl is missing") in found


def journal_file_of(directory, name):
    (file,) = (directory / "journal").glob(f"{name}-*.jsonl")
    return file


def test_verify_finds_a_run_without_a_journal_or_facts(cli):
    directory = record()
    journal_file(directory).unlink()
    (directory / "run.json").write_text("{")
    code, found = findings(cli, directory.name)
    assert (code, [what.partition(":")[0] for _, what in found]) == (
        1,
        ["run.json cannot be read", "there is no journal"],
    )


def test_verify_finds_an_unreadable_file(cli, monkeypatch):
    file = journal_file(record())
    file.unlink()
    file.mkdir()  # also root cannot read that as a file
    code, found = findings(cli)
    assert (code, found[0][1]) == (1, f"journal/{file.name} cannot be read: Is a directory")


def test_verify_finds_records_that_were_lost(cli):
    with hl.run("full", summary=False) as run:
        run.recorder.event("records_lost", count=1200)
    assert findings(cli) == (1, [("damage", "1,200 records could not be written")])


@pytest.mark.parametrize(
    ("how", "said"),
    [("missing", "state.json is missing"), ("short", "state.json has 3 of"), ("manifest", "its manifest.json cannot")],
)
def test_verify_finds_a_damaged_checkpoint_and_names_a_whole_one(how, said, cli):
    directory = checkpointed_run()
    saved = directory / "checkpoints" / "step-00000004"
    if how == "missing":
        (saved / "state.json").unlink()
    else:
        (saved / ("state.json" if how == "short" else "manifest.json")).write_text("abc")
    result = cli("runs", "verify")
    assert (result.exit_code, f"checkpoints/step-00000004 is damaged: {said}" in result.stdout) == (1, True)
    assert "It resumes from step-00000002 instead." in result.stdout


def test_verify_notes_what_waits_for_a_sink_and_how_to_deliver_it(tmp_path, cli):
    with hl.run("done", sinks=["csv"], summary=False) as run:
        run.recording.sinks.close()
        for _ in run.steps(3):
            run.log(loss=1.0)
    result = cli("runs", "verify")
    said = "".join(result.stdout.split())
    assert (result.exit_code, "havenotbeendeliveredtocsv" in said) == (0, True)
    assert f"hooklinerunssync{run.dir}" in said


def test_verify_says_what_damage_means_and_what_to_do(cli):
    file = journal_file(record())
    with file.open("ab") as opened:
        opened.write(b"no record\n")
    lines = [line.strip() for line in cli("runs", "verify", "latest").stdout.splitlines()]
    assert lines[1].endswith("has 1 line that is not a record, first line 6")
    assert lines[2].startswith("They are left out")
    assert lines[3].startswith("Nothing needs to be done")


def test_verify_of_an_unknown_run_exits_with_two(cli):
    record()
    assert cli("runs", "verify", "nothing").exit_code == 2


def test_verify_and_tail_need_no_database_and_list_says_how_to_install_it(cli, monkeypatch):
    directory = record()
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert [cli("runs", command, directory).exit_code for command in ("verify", "tail", "sync")] == [0, 0, 0]
    result = cli("runs", "list")
    assert (result.exit_code, "pip install 'hookline[ui]'" in result.stderr) == (1, True)


def killed_run(*, received=None):
    """A run that did not say how it ended, sent by another machine that many seconds ago if that is given."""
    directory = record()
    file = journal_file(directory)
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))
    next(file.parent.glob("*.sha256")).unlink()  # a killed process has not noted that the file is complete
    if received is not None:
        sign = directory / "received.json"
        sign.write_text(json.dumps({"origin": "elsewhere", "every_seconds": 5.0}))
        os.utime(sign, (time.time() - received,) * 2)
    return directory


def test_verify_of_a_received_run_that_lives_finds_nothing(cli):
    file = journal_file(killed_run(received=0.0))
    file.write_bytes(file.read_bytes() + b'{"kind":"metr')
    assert findings(cli) == (0, [])


def test_verify_of_a_received_run_that_fell_silent_does_not_say_to_resume_it_here(cli):
    killed_run(received=1e6)
    (run,) = json.loads(cli("runs", "verify", "--json").stdout)
    (finding,) = run["findings"]
    assert (finding["kind"], finding["what"]) == ("note", "nothing was received after step 3")
    assert "resume=" not in finding["do"]


def test_verify_of_a_journal_cut_in_half_says_that_it_may_have_been_cut_off(cli):
    file = journal_file(record(losses=[1.0] * 50))
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2 + 1])
    (run,) = json.loads(cli("runs", "verify", "--json").stdout)
    assert "was killed while it wrote that record, or the file was cut off there" in run["findings"][0]["means"]


def flip(file, place, bit=1):
    data = bytearray(file.read_bytes())
    data[place] ^= bit
    file.write_bytes(data)


def test_verify_finds_a_flipped_bit_in_every_byte_of_a_journal_and_the_other_lines_are_read(cli):
    directory = record()
    recorder = Recorder(directory, name="side")
    for step in range(3):
        recorder.log(text="@ home", step=step)
    recorder.close()
    (file,) = (directory / "journal").glob("side-*.jsonl")
    whole = file.read_bytes()
    for place, byte in enumerate(whole):
        flip(file, place, byte if byte in (0x20, 0x40) else 1 << (place % 7))  # a zero byte ends most files
        verdict = verify(RunLocation("default", directory))
        lost = 1 + (byte == 10 and place + 1 < len(whole))  # two lines that are one
        assert (verdict.is_damaged, verdict.records) == (True, 8 - lost), (place, bytes([byte]))
        file.write_bytes(whole)


def test_verify_finds_a_flipped_bit_in_every_byte_of_the_digests(cli):
    directory = record()
    (file,) = (directory / "journal").glob("*.sha256")
    whole = file.read_bytes()
    for place in range(len(whole)):
        flip(file, place, 1 << (place % 8))
        assert verify(RunLocation("default", directory)).is_damaged, place
        file.write_bytes(whole)


@pytest.mark.parametrize("folder", ["checkpoints", "elsewhere"])
@pytest.mark.parametrize("name", ["x.pt", "x"])
def test_verify_finds_a_flipped_bit_in_a_checkpoint_wherever_it_was_saved(cli, torch, tmp_path, folder, name):
    save = {"save": lambda path: torch.save({"weight": torch.ones(1000)}, path / "model.pt"), "load": print}
    with hl.run("saved", summary=False, **save) as run:
        place = (run.dir if folder == "checkpoints" else tmp_path) / folder / name
        for _ in run.steps(1):
            run.save_checkpoint(place)
    whole = findings(cli)
    file = place if place.is_file() else place / "model.pt"
    flip(file, file.read_bytes().index(b"\0\0\x80\x3f" * 10) + 2, 0x40)
    code, [(kind, what)] = findings(cli)
    shown = f"checkpoints/{name}" if folder == "checkpoints" else str(place)
    assert (whole, code, kind, what.startswith(f"{shown} is damaged: the content of ")) == ((0, []), 1, "damage", True)


@pytest.mark.parametrize(("more", "noted"), [({"d": 1.0}, "2 values were"), ({}, "1 value was")])
def test_values_that_a_server_did_not_take_are_noted(cli, tmp_path, monkeypatch, more, noted):
    monkeypatch.setattr("hookline.server.limits.ROW_NAMES", 2)
    with WebServer(tmp_path, tokens=Tokens("write-token-of-a-test")) as server:
        sink = {"hookline": {"url": server.url, "token": "write-token-of-a-test"}}
        with hl.run("wide", sinks=[sink], summary=False) as run:
            run.log(a=1.0, b=1.0, c=1.0, **more)
    assert findings(cli, run.dir) == (0, [("note", f"{noted} left out of hookline")])
    assert f"{noted} left out of hookline" in cli("runs", "sync", run.dir).stdout


@pytest.mark.parametrize(
    ("count", "noted"),
    [(1, "1 image, file, other blob or artifact is"), (2, "2 images, files, other blobs or artifacts are")],
)
def test_blobs_that_a_server_did_not_take_are_noted(cli, tmp_path, count, noted):
    with WebServer(tmp_path, tokens=Tokens("write-token-of-a-test"), blobs=BlobLimits(blob_bytes=4)) as server:
        sink = {"hookline": {"url": server.url, "token": "write-token-of-a-test"}}
        with hl.run("pages", sinks=[sink], summary=False) as run:
            for number in range(count):
                run.log(page=hl.Html(f"<b>{number}</b>"))
    assert findings(cli, run.dir) == (0, [("note", f"{noted} not at hookline")])
