"""Episodes that hang, raise, return something else or do not end: each costs only itself."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from scripted_policy import ScriptedChat, worker

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Event, Sample
from hookline.hooks import CheckpointHook
from hookline.rl.rollouts import episode_runner, threads

RELEASED = threading.Event()
PASSES = 20
"""More passes of an event loop than it takes to collect the result of an episode that has returned."""


@pytest.fixture(autouse=True)
def release():
    """Let the threads of abandoned functions end."""
    RELEASED.clear()
    yield
    RELEASED.set()


class Yes:
    """Each episode asks once, and is rewarded; those of the first task do what a subclass says."""

    name = "yes"

    def __init__(self):
        self.rewarded = 0

    def sample(self, n, rng):
        return [rl.Task(f"{index}?") for index in range(n)]

    async def rollout(self, task, policy):
        reply = await policy.chat(task.prompt)
        if task.prompt == "0?":
            return await self.bad(task, policy)
        self.rewarded += 1
        return len(reply.text)

    async def bad(self, task, policy):
        raise NotImplementedError


def faulty(bad):
    """An environment whose first task behaves as a function says."""
    return type("Faulty", (Yes,), {"bad": staticmethod(bad)})()


def made_with(bad, problem="took longer than 0.3 s"):
    settings = {"prompts": 3, "group_size": 2, "environment_seconds": 0.3 if "0.3 s" in problem else 60}
    return worker(ScriptedChat(lambda prompt, rng: "yes"), environment=faulty(bad), rollout=settings)


async def waits_forever(task, policy):
    await asyncio.Event().wait()


async def ignores_cancellation(task, policy):
    while not RELEASED.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


async def blocks_a_thread(task, policy):
    await policy.in_thread(RELEASED.wait)


async def blocks_a_thread_of_asyncio(task, policy):
    await asyncio.to_thread(RELEASED.wait)


async def leaves_the_program(task, policy):
    sys.exit(3)


async def leaves_the_program_in_a_task(task, policy):
    await asyncio.create_task(leaves_the_program(task, policy))


async def cancels_itself(task, policy):
    raise asyncio.CancelledError


async def returns_a_text(task, policy):
    return "well done"


async def returns_nan(task, policy):
    return float("nan")


async def returns_no_numbers(task, policy):
    return {"a": "b", "c": [1]}


async def raises(task, policy):
    raise ValueError("no data base")


async def never_stops_asking(task, policy):
    while True:
        try:
            await policy.chat(task.prompt)
        except rl.EpisodeEnd:
            continue


async def sends_garbage(task, policy):
    await policy.chat([{"content": 4}])


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (waits_forever, "the environment took longer than 0.3 s"),
        (ignores_cancellation, "the environment took longer than 0.3 s"),
        (blocks_a_thread, "the environment took longer than 0.3 s"),
        (blocks_a_thread_of_asyncio, "the environment took longer than 0.3 s"),
        (never_stops_asking, "the environment took longer than 0.3 s"),
        (leaves_the_program, "raised SystemExit: 3"),
        (leaves_the_program_in_a_task, "raised SystemExit: 3"),
        (cancels_itself, "cancelled itself"),
        (returns_a_text, "gave 'well done', where a finite number is accepted"),
        (returns_nan, "gave nan, where a finite number is accepted"),
        (returns_no_numbers, "gave 'b', where a finite number is accepted"),
        (raises, "raised ValueError: no data base"),
        (sends_garbage, "raised OptionError: messages has the message {'content': 4} without a role"),
    ],
)
def test_episode_that_fails_costs_only_itself(bad, problem, caplog, monkeypatch):
    monkeypatch.setattr(episode_runner, "GRACE_SECONDS", 0.1)
    made = made_with(bad, problem)
    rollouts = made.roll_out()
    assert [each.task.prompt for each in rollouts] == ["1?", "1?", "2?", "2?"]
    assert {each.total for each in rollouts} == {3.0}
    assert sum(made.faults.values()) in (2, 4)  # a dict of two rewards has two faults
    assert problem in caplog.text
    assert len(made.roll_out()) == 4, "the next step is made as well"
    made.close_hooks()


def test_episode_that_blocks_the_event_loop_is_left_with_it_and_the_others_begin_again(caplog, monkeypatch):
    monkeypatch.setattr(episode_runner, "MIN_STALL_SECONDS", 1.0)

    async def blocks_the_loop(task, policy):
        RELEASED.wait()  # in an async function: nothing else runs meanwhile

    made = made_with(blocks_the_loop)
    rollouts = made.roll_out()
    assert [each.task.prompt for each in rollouts] == ["1?", "1?", "2?", "2?"]
    assert "blocked the event loop" in caplog.text
    assert "test_episode_faults.py" in caplog.text, "the place is named"
    RELEASED.set()
    made.close_hooks()


def test_suspension_of_the_process_does_not_count_as_blocking_the_event_loop(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(episode_runner, "time", SimpleNamespace(monotonic=lambda: now[0]))
    clock, blocked = episode_runner._Clock(), []
    for seconds in (0.05, 3600.0, 0.05):  # an hour in which no thread ran
        now[0] += seconds
        blocked.append(clock.poll())
    clock.beat()
    blocked.append(clock.poll())
    assert blocked == pytest.approx([0.05, 0.15, 0.2, 0.0])


def test_task_that_an_episode_leaves_behind_is_cancelled():
    left = []

    async def leaves_a_task(task, policy):
        left.append(asyncio.create_task(asyncio.Event().wait()))
        await asyncio.sleep(0)
        return 3

    made = made_with(leaves_a_task, problem="")
    assert len(made.roll_out()) == 6
    made.close_hooks()
    assert [task.cancelled() for task in left] == [True, True]


class Steps:
    """An episode whose methods a test replaces; by default it ends after a turn, with a reward of 1."""

    name = "steps"

    def __init__(self, **methods):
        self.methods = methods

    def sample(self, n, rng):
        return [rl.Task(f"{index}?") for index in range(n)]

    def episode(self):
        own = {
            "reset": lambda task: None,
            "step": lambda message: rl.Step(reward=1.0, done=True),
            **self.methods,
        }
        return type("Episode", (), {name: staticmethod(method) for name, method in own.items()})()


def step_that(returned):
    return {"step": lambda message: returned}


@pytest.mark.parametrize(
    ("methods", "problem"),
    [
        (step_that(None), "step() gave None, where a Step"),
        (step_that((1, 2)), "step() gave (1, 2), where a Step"),
        (step_that(rl.Step()), "step() gave no observation and is not done"),
        (step_that(rl.Step(observation=4)), "Step.observation is 4: give a text"),
        (step_that(rl.Step(reward="good", done=True)), "add_reward('good', 'reward'): give a number"),
        ({"reset": lambda task: 7}, "reset() is 7: give a text"),
        ({"reset": lambda task: [{"role": "user"}]}, "reset() is [{'role': 'user'}]: give a text"),
        ({"reset": lambda task: RELEASED.wait()}, "the environment took longer than 0.3 s"),
        ({"step": lambda message: RELEASED.wait()}, "the environment took longer than 0.3 s"),
        ({"score": lambda: "good"}, "gave 'good', where a finite number is accepted"),
        ({"close": lambda: 1 / 0}, "raised ZeroDivisionError"),
        ({"tools": [len]}, "is not a tool"),
    ],
)
def test_episode_object_that_fails_has_no_reward(methods, problem, caplog):
    policy = ScriptedChat(lambda prompt, rng: "yes")
    rollout = {"prompts": 2, "group_size": 1, "environment_seconds": 0.3 if "0.3 s" in problem else 60}
    made = worker(policy, environment=Steps(**methods), rollout=rollout)
    assert made.roll_out() == []
    assert made.step == 1
    assert sum(made.faults.values()) == 2
    assert problem in caplog.text
    made.close_hooks()


def test_functions_that_never_return_are_abandoned_up_to_a_limit(monkeypatch, caplog):
    monkeypatch.setattr(threads, "MAX_ABANDONED_THREADS", 3)
    rollout = {"prompts": 2, "group_size": 1, "episode_seconds": 0.1}
    environment = Steps(step=lambda message: RELEASED.wait())
    made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=environment, rollout=rollout)
    before = threading.enumerate()
    for _ in range(8):
        made.roll_out()
    assert made.faults["steps"] == 16
    began = [thread.name for thread in threading.enumerate() if thread not in before]
    assert sum(name.startswith("hookline-environment") for name in began) <= 5
    RELEASED.set()
    made.close_hooks()


def test_policy_that_fails_in_every_episode_leaves_the_step_empty():
    class Down(ScriptedChat):
        def generate(self, prompts, n, sampling):
            raise rl.PolicyError("no answer")

    made = worker(Down(lambda prompt, rng: ""), environment=Yes(), rollout={"failures": 2})
    assert made.roll_out() == []
    assert made.faults["policy"] == 13, "of each episode, and of the step"
    with pytest.raises(rl.PolicyError, match="no answer"):
        made.roll_out()


def test_policy_that_fails_once_costs_one_episode():
    class Shaky(ScriptedChat):
        failed = False

        def generate(self, prompts, n, sampling):
            if len(self.prompts) == 4 and not self.failed:
                self.failed = True
                raise OSError("connection reset")
            return super().generate(prompts, n, sampling)

    policy = Shaky(lambda prompt, rng: "yes")
    made = worker(policy, environment=faulty(returns_three))
    assert len(made.roll_out()) == 11
    assert made.faults["policy"] == 1


async def returns_three(task, policy):
    return 3


# Stops


def test_stop_request_ends_open_episodes_and_the_step_does_not_count(tmp_path):
    async def requests_a_stop(task, policy):
        passes = 0
        while passes < PASSES:
            await asyncio.sleep(0)
            passes += environment.rewarded == 4
        made.request_stop("enough")
        await asyncio.Event().wait()

    settings = {"output_dir": str(tmp_path), "name": "stopped"}
    chat, environment = ScriptedChat(lambda prompt, rng: "yes"), faulty(requests_a_stop)
    made = worker(chat, environment=environment, rollout={"prompts": 3, "group_size": 2}, **settings)
    ended = made.run(3)
    assert (ended.step, ended.stop_reason) == (0, "enough")
    (event,) = [each for each in read(made.dir) if isinstance(each, Event) and each.name == "rollouts_aborted"]
    samples = [each for each in read(made.dir) if isinstance(each, Sample)]
    assert event.data == {"finished": 4, "aborted": 2}
    assert [(each.finish, each.total) for each in samples] == [("stop", 3.0)] * 4 + [("abort", None)] * 2


def test_stopped_step_is_made_again_by_a_resumed_worker(tmp_path):
    def made_by(directory, steps, *, stop_in_step=None, **settings):
        async def stops_once(task, policy):
            if stop_in_step is not None and made.step == stop_in_step:
                made.request_stop("enough")
                await asyncio.Event().wait()
            return 3

        chat = ScriptedChat(lambda prompt, rng: rng.choice(["yes", "maybe", "no"]))
        options = {"output_dir": str(directory), "name": "made", "hooks": [CheckpointHook(1)]} | settings
        made = worker(chat, environment=faulty(stops_once), rollout={"samples": None}, **options)
        made.run(steps)
        return made

    whole = made_by(tmp_path / "whole", 4)
    stopped = made_by(tmp_path / "parts", 4, stop_in_step=2)
    assert stopped.step == 2
    resumed = made_by(tmp_path / "parts", 4, resume="last")
    assert resumed.step == 4
    assert completions_of(resumed) == completions_of(whole)
    assert len(completions_of(whole)) == 4 * 12


def completions_of(made):
    """The samples that count: those of a step that was made again replace the earlier ones."""
    samples = [each for each in read(made.dir) if isinstance(each, Sample)]
    return [(each.step, each.prompt, each.completion, each.total, each.extra["episode"]) for each in samples]


INTERRUPTED = """
import asyncio, signal, sys
from scripted_policy import ScriptedChat, worker
import hookline as hl
from hookline import rl

class Hangs:
    name = "hangs"
    other_returns = asyncio.Event()
    def sample(self, n, rng):
        return [rl.Task(f"{index}?") for index in range(n)]
    async def rollout(self, task, policy):
        await policy.chat(task.prompt)
        if task.prompt == "0?":
            await self.other_returns.wait()
            for _ in range(PASSES):
                await asyncio.sleep(0)
            print("open", flush=True)
            await asyncio.Event().wait()
        self.other_returns.set()
        return 1.0

made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=Hangs(), output_dir=sys.argv[1],
              rollout={"prompts": 2, "group_size": 1})
ended = made.run(3)
print(made.state, ended.stop_reason, ended.step)
"""


def test_interrupt_ends_open_episodes_promptly_and_the_record_is_whole(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.replace("PASSES", str(PASSES)), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    process.send_signal(signal.SIGINT)
    rest, _ = process.communicate(timeout=60)
    assert rest.split() == ["stopped", "SIGINT", "0"]
    samples = hl.runs(tmp_path).samples()
    assert [(each["prompt"], each["finish"]) for each in samples] == [("1?", "stop"), ("0?", "abort")]


def test_worker_that_is_killed_loses_no_sample_and_has_none_twice(tmp_path):
    script = Path(__file__).with_name("kill_rollouts.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path, "4"], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)
    assert counted["kills"] == 4
    assert counted["samples"] == 12 * counted["steps"] >= 12 * 7
    assert (counted["lost"], counted["doubled_or_wrong"]) == (0, 0)
