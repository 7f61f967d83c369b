"""Experiments that are interrupted and started again: they end with what an undisturbed one ends with."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, random, sys, threading
from pathlib import Path
import hookline as hl
from hookline.rl.types import Task


class Strikes(hl.Callback):
    '''Does something to a process, once: at a step of a run, or at a moment of it.'''

    def __init__(self, key, at, whom, number, marker):
        self.key, self.at, self.whom, self.number, self.marker = key, at, whom, number, marker

    def strike(self, ctx, at, reached=lambda: False):
        if ctx.run_key == self.key and at == self.at and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getppid() if self.whom == "parent" else os.getpid(), self.number)
            while self.whom == "parent" and not reached():
                threading.Event().wait(0.01)

    def on_step_end(self, loop, step_idx, batch, metrics):
        self.strike(loop.ctx, loop.step, lambda: loop.stop_requested)

    def on_train_end(self, loop):
        self.strike(loop.ctx, "trained")

    def on_run_end(self, ctx, run_result, arm):
        self.strike(ctx, "ended")


class Sums(hl.Benchmark):
    name = "sums"

    def tasks(self):
        return [Task(f"{i / 10}", expected="+") for i in range(-5, 5)]

    def score(self, task, output):
        return output


def trained_by_torch():
    import torch

    torch.set_num_threads(1)
    x = torch.linspace(-1, 1, 16).unsqueeze(1)

    def model():
        return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))

    def answers(trainer):
        return lambda prompts: [trainer.model(torch.tensor([[float(prompt)]])).item() for prompt in prompts]

    config = hl.TrainerConfig(max_steps=8, batch_size=4, summary=False, checkpoint={"every_n_steps": 2})
    parts = dict(train_data=torch.utils.data.TensorDataset(x, 2 * x), loss=torch.nn.functional.mse_loss)
    return hl.Arm("m", config, model=model, answers=answers, **parts)


def walk(ctx, run):
    state = {"x": 0.0}
    def save(directory):
        (directory / "state.txt").write_text(repr((state["x"], random.getstate())))
    def load(directory):
        state["x"], drawn = eval((directory / "state.txt").read_text())
        random.setstate(drawn)
    run.checkpoint_with(save, load)
    run.answers = lambda prompts: [state["x"] * float(prompt) for prompt in prompts]
    for step in run.steps(8):
        state["x"] += run.config["learning_rate"] * random.random()
        run.log(loss=state["x"])
        if step % 2:
            run.save_checkpoint()


def experiment(kind, directory, executor, strikes):
    base = trained_by_torch() if kind == "trainer" else hl.Arm("m", walk)
    arms = hl.grid(base, learning_rate=[0.05, 0.01])
    benchmarks, callbacks = [Sums()], [Strikes(*strikes)] if strikes else []
    return hl.Experiment(
        "e", arms, repeats=2, benchmarks=benchmarks, callbacks=callbacks, output_dir=directory, executor=executor
    )


if __name__ == "__main__":
    kind, directory, executor, strikes = sys.argv[1:]
    result = experiment(kind, directory, eval(executor), eval(strikes)).run()
    (Path(directory) / "table.md").write_text(result.to_markdown())
    print(result.status, *(f"{run.run_key}:{run.status}" for arm in result.arms for run in arm.runs))
"""
KEY = "m,learning_rate=0.05-r1"
PROCESSES = "{'local': {'processes': 2}}"


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "experiment_script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def start(torch_programs, script):
    """Runs the script to its end, whatever that is, with everything that it started."""

    def run(kind, directory, executor="'local'", strikes=None):
        program = torch_programs.start(script, kind, directory, executor, repr(strikes), merge=False)
        out, err = program.communicate(240)
        return subprocess.CompletedProcess([], program.returncode, out, err)

    return run


def outcome(directory):
    """What an experiment ended with: its table, and every run's results."""
    found = {}
    for path in sorted(Path(directory).glob("*/result.json")):
        result = json.loads(path.read_text())
        found[path.parent.name] = (result["status"], result["metrics"], result["evals"])
    return (Path(directory) / "table.md").read_text(), found


@pytest.fixture(scope="module")
def undisturbed(start, tmp_path_factory):
    """What each kind of arm ends with where nothing happens."""
    found = {}
    for kind in ("trainer", "function"):
        directory = tmp_path_factory.mktemp("undisturbed") / "e"
        done = start(kind, directory)
        assert done.returncode == 0, done.stderr
        found[kind] = outcome(directory)
    return found


def strike(tmp_path, at, whom, number):
    return KEY, at, whom, int(number), str(tmp_path / "struck")


@pytest.mark.parametrize(
    ("kind", "at"),  # in the middle of a training, before its benchmarks, before it is marked as complete
    [("trainer", 5), ("trainer", "trained"), ("function", 5), ("function", "trained"), ("function", "ended")],
)
def test_experiment_killed_and_started_again_ends_with_the_same_table(start, undisturbed, tmp_path, kind, at):
    directory, strikes = tmp_path / "e", strike(tmp_path, at, "self", signal.SIGKILL)
    killed = start(kind, directory, strikes=strikes)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    complete = [path.parent.name for path in directory.glob("*/result.json")]
    assert complete == ["m,learning_rate=0.05-r0"]
    again = start(kind, directory, strikes=strikes)
    assert again.returncode == 0, again.stderr
    assert outcome(directory) == undisturbed[kind]


def test_experiment_killed_with_runs_in_processes_ends_with_the_same_table(start, undisturbed, tmp_path):
    directory, strikes = tmp_path / "e", strike(tmp_path, 5, "parent", signal.SIGKILL)
    assert start("function", directory, PROCESSES, strikes).returncode == -signal.SIGKILL
    again = start("function", directory, PROCESSES, strikes)
    assert again.returncode == 0, again.stderr
    assert outcome(directory) == undisturbed["function"]


def test_experiment_run_killed_leaves_the_others_and_is_made_when_started_again(start, undisturbed, tmp_path):
    directory, strikes = tmp_path / "e", strike(tmp_path, 5, "self", signal.SIGKILL)
    first = start("function", directory, PROCESSES, strikes)
    assert first.returncode == 0, first.stderr
    assert f"{KEY}:failed" in first.stdout
    failed = json.loads((directory / KEY / "result.json").read_text())
    assert failed["error"] == "Its process was killed by SIGKILL."
    found, expected = dict(outcome(directory)[1]), dict(undisturbed["function"][1])
    del found[KEY], expected[KEY]
    assert found == expected
    again = start("function", directory, PROCESSES, strikes)
    assert again.returncode == 0, again.stderr
    assert outcome(directory) == undisturbed["function"]


@pytest.mark.parametrize(("executor", "whom"), [("'local'", "self"), (PROCESSES, "parent")])
def test_experiment_asked_to_stop_saves_and_continues_later(start, undisturbed, tmp_path, executor, whom):
    directory, strikes = tmp_path / "e", strike(tmp_path, 5, whom, signal.SIGTERM)
    stopped = start("function", directory, executor, strikes)
    assert stopped.returncode == 0, stopped.stderr
    assert stopped.stdout.startswith("stopped "), stopped.stdout
    assert stopped.stderr.count("SIGTERM: stopping after this step.") == 1, stopped.stderr
    assert not (directory / "m,learning_rate=0.01-r1" / "result.json").exists()
    again = start("function", directory, executor, strikes)
    assert again.stdout.startswith("completed "), again.stderr
    assert outcome(directory) == undisturbed["function"]


def test_experiment_that_runs_is_not_run_a_second_time(script, tmp_path):
    directory = tmp_path / "e"
    code = (
        f"import sys; sys.path.insert(0, {str(script.parent)!r})\n"
        "import experiment_script as s, hookline as hl\n"
        f"first, second = (s.experiment('function', {str(directory)!r}, 'local', None) for _ in range(2))\n"
        "first.store.open('e', first.describe())\n"
        "try: second.run()\n"
        "except hl.ConfigError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "this experiment is running already" in done.stdout
