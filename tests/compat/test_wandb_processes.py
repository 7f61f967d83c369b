"""The drop-in and processes: kills, the ends of programs, forks, spawned children, shared runs, threads."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from compat.wandb_support import drop_in, last_run, rows

import hookline as hl

__all__ = ["drop_in"]

BEGIN = """
import os, sys
import hookline.compat.wandb as wandb
run = wandb.init(project="p", settings={"console": "off", "disable_git": True, "silent": True})
"""


def start(tmp_path, code, **options):
    script = tmp_path / "script.py"
    script.write_text(BEGIN + textwrap.dedent(code))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment["HOOKLINE_ROOT"] = str(tmp_path / "runs")
    return subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=environment, text=True, **options)


def run_program(tmp_path, code):
    process = start(tmp_path, code, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate()
    return process.returncode, output, errors


def test_killed_program_loses_no_row_that_was_logged(drop_in, tmp_path):
    code = """
    for step in range(10**9):
        wandb.log({"loss": step, "acc": 1.0}, step=step)
        wandb.log({"more": step}, step=step)
        print(step, flush=True)
    """
    process = start(tmp_path, code, stdout=subprocess.PIPE)
    seen = [int(process.stdout.readline()) for _ in range(500)]
    process.send_signal(signal.SIGKILL)
    seen += [int(line) for line in process.stdout.read().split("\n")[:-1]]
    process.wait()
    process.stdout.close()
    found = rows()
    assert [row["_step"] for row in found[: len(seen)]] == seen
    assert all(row["more"] == row["loss"] == row["_step"] for row in found[: len(seen)])
    assert (last_run().state, last_run().summary["loss"] >= seen[-1]) == ("crashed", True)


@pytest.mark.parametrize(
    ("code", "status", "state"),
    [
        ("", 0, "finished"),
        ("raise ValueError('diverged')", 1, "failed"),
        ("sys.exit(3)", 3, "failed"),
        ("sys.exit('no data')", 1, "failed"),
        ("sys.exit(0)", 0, "finished"),
        ("raise KeyboardInterrupt", -signal.SIGINT, "killed"),
        ("run.finish(); sys.exit(2)", 2, "finished"),
    ],
)
def test_program_that_ends_ends_its_run(drop_in, tmp_path, code, status, state):
    assert run_program(tmp_path, f'wandb.log({{"a": 1}})\n{code}')[0] == status
    assert (last_run().state, rows()) == (state, [{"a": 1, "_step": 0}])


def test_program_restores_what_it_replaced(drop_in):
    before = sys.exit
    drop_in.init().finish()
    assert sys.exit is before


def test_interrupt_reaches_the_program_at_once(drop_in, tmp_path):
    code = """
    import signal
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    """
    assert run_program(tmp_path, code)[0] == 0


def test_forked_process_records_to_the_run_and_does_not_end_it(drop_in, tmp_path):
    code = """
    wandb.log({"a": 1})
    child = os.fork()
    if child == 0:
        wandb.log({"child": 2})
        run.finish()
        os._exit(0)
    os.waitpid(child, 0)
    wandb.log({"b": 3})
    """
    assert run_program(tmp_path, code)[0] == 0
    assert (rows(), last_run().state) == ([{"a": 1, "_step": 0}, {"child": 2, "b": 3, "_step": 1}], "finished")


def test_forked_process_that_calls_init_has_a_run_of_its_own(drop_in, tmp_path):
    code = """
    child = os.fork()
    if child == 0:
        other = wandb.init(project="p", settings={"console": "off"})
        assert other.id != run.id and wandb.run is other
        wandb.log({"child": 1})
        wandb.finish()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    wandb.log({"parent": 1})
    """
    returned = run_program(tmp_path, code)
    assert returned[0] == 0, returned
    assert sorted(next(iter(run.summary)) for run in drop_in.Api().runs("p")) == ["child", "parent"]


def test_workers_of_a_loader_do_not_disturb_the_run(drop_in, tmp_path):
    pytest.importorskip("torch")
    code = """
    import torch
    class Data(torch.utils.data.Dataset):
        def __len__(self): return 4
        def __getitem__(self, i): return torch.tensor(float(i))
    for batch in torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context="fork"):
        wandb.log({"x": batch})
    """
    returned = run_program(tmp_path, code)
    assert returned[0] == 0, returned
    assert ([row["x"] for row in rows()], last_run().state) == ([0, 1, 2, 3], "finished")


def test_spawned_process_attaches_to_a_run_that_is_passed_to_it(drop_in, tmp_path):
    (tmp_path / "worker.py").write_text(
        "def work(run):\n"
        "    run.log({'child': 2, 'seen': run.config.lr})\n"
        "    for step in range(2000):\n"
        "        run.log({'child': 2}, step=1)\n"
        "    run.summary['from_child'] = 5\n"
        "    run.config['late'] = 1\n"
        "    run.finish()\n"
    )
    code = """
    if __name__ == "__main__":
        import multiprocessing, worker
        run.config.lr = 0.5
        wandb.log({"a": 1})
        child = multiprocessing.get_context("spawn").Process(target=worker.work, args=(run,))
        child.start()
        child.join()
        assert child.exitcode == 0
        wandb.log({"b": 3})
    """
    script = BEGIN.replace("run = wandb.init", 'run = __name__ == "__main__" and wandb.init')
    (tmp_path / "main.py").write_text(script + textwrap.dedent(code))
    environment = {**os.environ, "HOOKLINE_ROOT": str(tmp_path / "runs")}
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert rows() == [{"a": 1, "_step": 0}, {"child": 2, "seen": 0.5, "b": 3, "_step": 1}]
    assert (last_run().summary["from_child"], last_run().state) == (5, "finished")


def test_shared_run_takes_rows_of_several_processes(drop_in, tmp_path):
    run = drop_in.init(id="shared", mode="shared", settings=drop_in.Settings(x_primary=True, x_label="0"))
    run.log({"a": 1})
    code = """
    run.finish()
    other = wandb.init(project="p", id="shared", mode="shared", settings={"silent": True, "x_primary": False})
    assert other.id == "shared" and other.step == 1
    other.log({"worker": 2}, step=50)
    other.finish()
    """
    returned = run_program(tmp_path, code)
    assert returned[0] == 0, returned
    run.log({"b": 3})
    run.finish()
    found = [
        {name: value for name, value in row.items() if name[0] != "_"}
        for row in drop_in.Api().run("p/shared").scan_history()
    ]
    assert found == [{"a": 1}, {"worker": 2, "b": 3}]
    assert drop_in.Api().run("p/shared").state == "finished"


def test_run_that_is_running_elsewhere_cannot_be_resumed(drop_in, tmp_path):
    process = start(
        tmp_path, "print(run.id, flush=True)\nsys.stdin.read()", stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    run_id = process.stdout.readline().strip()
    with pytest.raises(drop_in.UsageError, match="still running"):
        drop_in.init(id=run_id, resume="must")
    process.communicate()
    assert drop_in.init(id=run_id, resume="must").resumed


def test_attach_by_id_returns_the_run_of_this_process_or_another(drop_in, tmp_path):
    run = drop_in.init(id="x")
    assert (drop_in.attach("x") is run, drop_in._attach(run._attach_id) is run, drop_in.attach(run=run) is run) == (
        True,
    ) * 3
    for arguments in ({"run_id": "nothing"}, {}):
        with pytest.raises(drop_in.UsageError):
            drop_in.attach(**arguments)


def test_console_of_the_program_is_recorded_unless_it_is_off(drop_in, tmp_path):
    code = """
    run.finish()
    run = wandb.init(project="p", settings={"silent": True, "disable_git": True})
    print("a line of the program")
    """
    assert run_program(tmp_path, code)[0] == 0
    lines = [(row["run"], row["text"]) for row in hl.runs("runs").console().rows()]
    assert [text for _, text in lines] == ["a line of the program"]
    assert "a line of the program" in last_run().file("output.log")._content().decode()


def test_several_threads_log_at_once_and_lose_nothing(drop_in):
    import threading

    run = drop_in.init()
    threads = [threading.Thread(target=lambda n=n: [run.log({f"t{n}": step}) for step in range(200)]) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.finish()
    found = rows()
    assert [row["_step"] for row in found] == list(range(800))
    assert {name: sum(name in row for row in found) for name in ("t0", "t1", "t2", "t3")} == dict.fromkeys(
        ("t0", "t1", "t2", "t3"), 200
    )


def test_values_on_a_device_are_recorded_without_waiting(drop_in):
    jax = pytest.importorskip("jax")
    run = drop_in.init()
    run.log({"a": jax.numpy.float32(1.5), "b": {"c": jax.numpy.ones(())}}, commit=False)
    run.log({"d": 2})
    run.finish()
    assert (rows(), run.summary["a"], run.summary["b"]["c"]) == ([{"a": 1.5, "b.c": 1, "d": 2, "_step": 0}], 1.5, 1)
    assert json.loads(json.dumps(last_run().summary["a"])) == 1.5
