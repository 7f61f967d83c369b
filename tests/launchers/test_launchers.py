"""Schedulers that stop a training and start it again: signals and torchrun for real, others by their configuration."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from loopback_server import free_port

import hookline as hl
from hookline._record.records import Event, Metrics

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "launchers"
SCRIPTS = Path(__file__).parent / "scripts"


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOOKLINE_", "WANDB_", "SLURM_"))}
    return {**kept, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore", **more}


def program(folder, name, code):
    """A program on the path, in place of one of the scheduler."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{code}\n")
    path.chmod(0o755)


def rows(run, name):
    records = [record for record in hl.read(run.directory) if isinstance(record, Metrics) and name in record.values]
    return {record.step: record.values[name] for record in records}


@pytest.mark.parametrize("script", sorted(EXAMPLES.glob("*.sh")), ids=lambda path: path.name)
def test_shell_script_is_valid(script):
    subprocess.run(["bash", "-n", script], check=True)


def slurm_job(tmp_path, gate):
    return subprocess.Popen(
        ["bash", EXAMPLES / "slurm.sh"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(
            PATH=f"{tmp_path}:{os.environ['PATH']}",
            SLURM_JOB_ID="7",
            HOOKLINE_ROOT=str(tmp_path / "runs"),
            TRAIN=str(SCRIPTS / "stopped.py"),
            GATE=str(gate),
        ),
    )


def test_slurm_job_saves_at_its_signal_is_requeued_and_continues(tmp_path):
    program(tmp_path, "srun", 'shift; exec "$@"')
    program(tmp_path, "scontrol", f'echo "$@" > {tmp_path}/requeued')
    program(tmp_path, "python", f'exec {sys.executable} "$@"')
    os.mkfifo(gate := tmp_path / "gate")

    with slurm_job(tmp_path, gate) as job:
        assert job.stdout is not None
        lines = iter(job.stdout.readline, "")
        assert "ready\n" in lines
        job.send_signal(signal.SIGUSR1)
        assert any("SIGTERM" in line for line in lines)
        gate.write_text("")
        assert job.wait() == 0
    assert (tmp_path / "requeued").read_text() == "requeue 7\n"
    [run] = hl.runs(tmp_path / "runs")
    assert (run.name, run.status, run.step, run.tags) == ("job-7", "stopped", 3, ("slurm", "default"))

    with slurm_job(tmp_path, gate) as again:
        assert again.communicate()[0].endswith("total 15\n")
    [run] = hl.runs(tmp_path / "runs")
    assert (run.status, run.step) == ("finished", 6)
    assert rows(run, "total") == {1: 0, 2: 1, 3: 3, 4: 6, 5: 10, 6: 15}


def torchrun_arguments(script, processes):
    launch = ["--nproc_per_node", str(processes), "--max-restarts", "1"]
    # c10d: with a static rendezvous, restarted processes find the addresses of those that died.
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    return [*launch, SCRIPTS / script]


def torchrun_under_exec(tmp_path, script, *options):
    """Run a script of two processes."""
    command = [sys.executable, "-m", "hookline", "exec", "--quiet", *options, "--"]
    done = subprocess.run(
        [*command, sys.executable, "-m", "torch.distributed.run", *torchrun_arguments(script, 2)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_torchrun_restart_continues_the_run_from_its_checkpoint(torch_programs, tmp_path):
    main = ("-c", "from torch.distributed.run import main; main()")
    torch_programs.run_ranks(1, *main, *torchrun_arguments("fails_once.py", 1), env={"PYTHONWARNINGS": "ignore"})

    [run] = hl.runs(tmp_path / "runs")
    assert (run.name, run.status, run.step) == ("elastic", "finished", 6)
    assert sorted(rows(run, "loss")) == [1, 2, 3, 4, 5, 6]
    resumed = [record for record in hl.read(run.directory) if isinstance(record, Event) and record.name == "resume"]
    assert resumed


def test_torchrun_restart_under_exec_continues_the_run_of_the_script(tmp_path):
    torchrun_under_exec(tmp_path, "logs_to_wandb.py", "--as-wandb")

    [run] = hl.runs(tmp_path / "runs")
    assert (run.name, run.status, run.config) == ("logs_to_wandb", "finished", {"lr": 0.1})
    assert sorted(rows(run, "loss")) == [0, 1, 2, 3, 4, 5]


def test_kubernetes_job_starts_again_and_has_time_to_save():
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())

    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "Job")
    pod = job["spec"]["template"]["spec"]
    [container] = pod["containers"]
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"] >= 60) == ("OnFailure", True)
    assert container["command"] == ["python", "train.py"]
    assert variables["HOOKLINE_ROOT"] == container["volumeMounts"][0]["mountPath"]
    assert {volume["name"] for volume in pod["volumes"]} == {mount["name"] for mount in container["volumeMounts"]}


def test_settings_of_the_kubernetes_job_are_accepted(tmp_path, monkeypatch):
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())
    for each in job["spec"]["template"]["spec"]["containers"][0]["env"]:
        monkeypatch.setenv(each["name"], each.get("value", "a-token"))
    monkeypatch.setenv("HOOKLINE_MODE", "offline")

    with hl.run(root=tmp_path, summary=False, console=False) as run:
        run.log(loss=1.0)

    assert (run.tags, [state.name for state in run.sinks()]) == (("kubernetes",), ["hookline"])


def test_ray_job_submits_the_script_under_exec(tmp_path):
    program(tmp_path, "ray", 'printf "%s\\n" "$@"')

    done = subprocess.run(
        ["bash", EXAMPLES / "ray_job.sh", "--lr", "1"],
        capture_output=True,
        text=True,
        check=True,
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
    )

    arguments = done.stdout.split()
    runtime = yaml.safe_load(Path(arguments[arguments.index("--runtime-env") + 1]).read_text())
    assert arguments[arguments.index("--") + 1 :] == ["hookline", "exec", "--", "python", "train.py", "--lr", "1"]
    assert set(runtime["env_vars"]) == {"HOOKLINE_ROOT", "HOOKLINE_TAGS"}


def test_trainer_of_two_processes_under_exec_is_one_run(tmp_path):
    done = torchrun_under_exec(tmp_path, "two_processes.py")

    [result] = [line for line in done.stdout.splitlines() if "RESULT" in line]
    world_size, *losses = json.loads(result.partition("RESULT ")[2])
    [run] = hl.runs(tmp_path / "runs")
    assert (world_size, run.name, run.status, run.step) == (2, "two_processes", "finished", 2)
    assert list(rows(run, "loss").values()) == pytest.approx(losses, rel=1e-6)
    assert "val/loss" in run.metrics
