"""``hookline runs compress``: ended runs take less space, and everything that reads runs finds the same in them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from finished_runs import record

import hookline as hl
from hookline._record.console_reader import read_console
from hookline._record.delivery import Delivery
from hookline._record.recorder import Recorder
from hookline.sinks import JsonlSink

LOSSES = [1 / step for step in range(1, 3001)]


def compressed(directory):
    return sorted(path.name for path in directory.rglob("*.zst"))


def output(cli, *arguments, status=0):
    result = cli("runs", *arguments)
    assert result.exit_code == status, result.output
    return result.stdout


def test_compress_needs_runs_or_a_rule(cli):
    directory = record(losses=LOSSES)
    assert "Name runs, or pass --all or --older-than" in cli("runs", "compress").output
    assert cli("runs", "compress", "--all", directory.name).exit_code == 2
    assert compressed(directory) == []


def test_compress_shows_sizes_and_undo_restores_them(cli):
    directory = record(losses=LOSSES)
    (journal,) = (directory / "journal").glob("*.jsonl")
    before = journal.read_bytes()
    assert "Would compress 1 run" in output(cli, "compress", "--all", "--dry-run")
    assert journal.read_bytes() == before
    assert "Compressed 1 run: " in output(cli, "compress", directory)
    assert (journal.exists(), compressed(directory)) == (False, [f"{journal.name}.zst"])
    assert output(cli, "compress", "--all") == "There is nothing to compress.\n"
    document = json.loads(output(cli, "compress", "--undo", directory.name, "--json"))
    assert [run["after"] for run in document["runs"]] == [len(before)]
    assert (journal.read_bytes(), compressed(directory)) == (before, [])


@pytest.mark.parametrize(("age", "done"), [("3", ["old"]), ("2w", []), ("0", ["new", "old"]), ("12h", ["old"])])
def test_compress_older_than_counts_from_the_end_of_a_run(cli, age, done):
    directories = {name: record(name, losses=LOSSES) for name in ("new", "old")}
    for path in (directories["old"] / "journal").glob("*.jsonl"):
        # The same lines, four days ago; without checksums, which are of their own time.
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        moved = [{key: value for key, value in line.items() if key not in ("#", "crc")} for line in lines]
        path.write_text("".join(json.dumps(line | {"time": line["time"] - 4 * 86400}) + "\n" for line in moved))
    output(cli, "compress", "--older-than", age)
    assert sorted(name for name, directory in directories.items() if compressed(directory)) == done


def test_compress_of_a_directory_outside_of_the_root_is_refused(cli):
    record(losses=LOSSES)
    other = record(losses=LOSSES, root="elsewhere")
    assert "is outside of" in cli("runs", "compress", other).output
    assert compressed(other) == []


def test_compress_with_an_age_that_is_none_is_refused(cli):
    record()
    assert "--older-than soon" in cli("runs", "compress", "--older-than", "soon").output


def test_compress_of_a_live_run_is_refused_and_all_leaves_it_alone(cli):
    with hl.run("live", summary=False) as run:
        for loss in run.steps(LOSSES):
            run.log(loss=loss)
        assert "is still running" in cli("runs", "compress", run.dir.name).output
        assert run.dir.name in output(cli, "compress", "--all")
        (result,) = hl.runs().compress()
    assert (result.refused, result.files, compressed(run.dir)) == ("it is still running", 0, [])


def test_compressed_run_is_the_same_for_queries_and_is_not_read_again(cli):
    directory = record(losses=LOSSES)
    runs = hl.runs()
    before = runs.metrics("loss").rows(), runs[0].step, list(hl.read(directory))
    (done,) = runs.compress()
    assert (done.files, done.after < done.before) == (1, True)
    assert runs.refresh().ingest().rows == 0
    assert (runs.metrics("loss").rows(), runs[0].step, list(hl.read(directory))) == before
    assert runs[0].problems == ()
    runs.close()
    shutil.rmtree(runs.root / ".hookline")
    again = hl.runs()
    assert (again.metrics("loss").rows(), again[0].step) == before[:2]


PRINTS = """
import hookline as hl
with hl.run("printed", summary=False) as run:
    for step in run.steps(500):
        print(f"step {step} prints a line that is recorded")
        run.log(loss=step / 7)
"""


def test_compressed_run_is_the_same_for_the_other_commands(cli):
    subprocess.run([sys.executable, "-c", PRINTS], stdout=subprocess.DEVNULL, check=True, timeout=200)
    (run_dir,) = Path("runs").glob("*/*-*")
    commands = [
        ("export", run_dir.name, "-o", "-", "--format", "jsonl"),
        ("tail", run_dir.name, "--lines", "5", "--json"),
        ("log", run_dir.name),
        ("verify", "--json"),
    ]
    before = [output(cli, *command) for command in commands], list(read_console(run_dir))
    output(cli, "compress", run_dir.name)
    assert {path.parent.name for path in run_dir.rglob("*.zst")} == {"journal", "console"}
    after = [output(cli, *command) for command in commands], list(read_console(run_dir))
    assert [len(text) > 100 for text in before[0]] == [True] * len(commands)
    assert after == before


def test_verify_finds_a_damaged_frame_and_another_digest(cli):
    directory = record(losses=LOSSES)
    output(cli, "compress", "--all")
    (path,) = (directory / "journal").glob("*.zst")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    (run,) = json.loads(output(cli, "verify", "--json", status=1))
    (finding,) = run["findings"]
    assert finding["what"].startswith(f"journal/{path.name}: the compressed data cannot be read at byte 0 (")
    name = f"journal/{path.name.removesuffix('.zst')}"
    assert f"skipped {name}: The frame at byte 0 is damaged" in output(cli, "compress", "--undo", "--all", status=1)
    assert path.read_bytes() == data


def test_verify_compares_the_content_of_a_compressed_file_with_its_digest(cli):
    directory = record(losses=LOSSES)
    (path,) = (directory / "journal").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    output(cli, "compress", "--all")
    found = json.loads(output(cli, "verify", "--json", status=1))[0]["findings"]
    assert any("changed since it was complete" in finding["what"] for finding in found)


def test_sink_continues_in_the_middle_of_a_compressed_file(tmp_path):
    recorder = Recorder(tmp_path, segment_bytes=1 << 16)
    for step in range(3000):
        recorder.log(step=step, loss=step / 7)
        if step == 1200:
            recorder.flush()
            half = Delivery(tmp_path, "jsonl", JsonlSink())
            half.round()
            half.close(0)
            half.run()
    recorder.status("finished", step=3000)
    recorder.close()
    expected = list(hl.read(tmp_path))
    code = (
        "import sys; from pathlib import Path; from hookline._record.compression import compress_directory\n"
        "assert compress_directory(Path(sys.argv[1])).skipped == {}"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "journal"], check=True, timeout=200)
    assert len(compressed(tmp_path)) > 2
    rest = Delivery(tmp_path, "jsonl", JsonlSink())
    assert rest.progress.cursor.behind(tmp_path / "journal") > 0
    rest.round()
    rest.close(0)
    rest.run()
    steps = [json.loads(line).get("step") for line in (tmp_path / "records.jsonl").read_bytes().splitlines()]
    assert steps == [record.step for record in expected]


def test_run_with_compressed_sessions_is_resumed(cli):
    def train(stop, resume=None):
        with hl.run("again", summary=False, save=lambda path: None, load=lambda path: None, resume=resume) as run:
            for step in run.steps(1000):
                run.log(loss=step / 3)
                if run.step == stop:
                    run.save_checkpoint()
                    run.request_stop()
        return run.dir

    directory = train(600)
    output(cli, "compress", "--all")
    assert train(None, resume=directory) == directory
    steps = [row["step"] for row in hl.runs().metrics("loss")]
    assert (steps, len(compressed(directory / "journal"))) == (list(range(1, 1001)), 1)
    output(cli, "compress", "--all")
    assert [row["step"] for row in hl.runs().metrics("loss")] == steps
    assert [run["ok"] for run in json.loads(output(cli, "verify", "--json"))] == [True]


def test_deleting_a_run_keeps_blobs_that_a_compressed_run_refers_to(cli):
    pixels = [[[value, value, value] for value in range(0, 160, 10)] for _ in range(16)]
    directories = []
    for name in ("first", "second"):
        with hl.run(name, summary=False) as run:
            for loss in run.steps(LOSSES):
                run.log(loss=loss)
            run.log(picture=hl.Image(pixels))
        directories.append(run.dir)
    blobs = sorted(path.name for path in (directories[0].parents[1] / ".blobs").rglob("*") if path.is_file())
    output(cli, "compress", "--all")
    output(cli, "delete", directories[0].name, "--yes")
    assert sorted(path.name for path in (directories[0].parents[1] / ".blobs").rglob("*") if path.is_file()) == blobs
    output(cli, "delete", directories[1].name, "--yes")
    left = sorted(path.name for path in (directories[0].parents[1] / ".blobs").rglob("*") if path.is_file())
    assert set(left) < set(blobs)


def test_commands_without_the_package_say_what_to_install(cli, program):
    directory = record(losses=LOSSES)
    record("plain")
    output(cli, "compress", directory.name)
    code = (
        "import sys; sys.modules['backports.zstd'] = sys.modules['compression.zstd'] = None\n"
        "from hookline.cli import app; app(sys.argv[1:])"
    )

    def run(*arguments):
        command = [sys.executable, "-c", code, "runs", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env=os.environ | {"COLUMNS": "200"})

    for arguments in (["verify", directory.name], ["compress", "--all"], ["export", directory.name, "-o", "x.csv"]):
        result = run(*arguments)
        assert (result.returncode, "pip install 'hookline[ui]'" in result.stderr) == (1, True), (arguments, result)
    listed = run("list")
    assert (listed.returncode, "plain" in listed.stdout, directory.name in listed.stdout) == (0, True, True)
