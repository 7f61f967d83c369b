"""Every registered environment keeps the same promises."""

import copy
import json
import pickle
import random

import pytest

from hookline.rl.environments.base import ENVIRONMENTS, Environment, evaluation_tasks, make_environment, succeeded


def correct(prompts, completions, answer, **columns):
    return [float(given == right) for given, right in zip(completions, answer, strict=True)]


ROWS = [{"prompt": f"{n}?", "answer": str(n)} for n in range(100)]
SETTINGS = {"dataset": {"dataset": ROWS, "rewards": [correct]}, "reasoning": {"environment": "sorting"}}
"""What those need that cannot be made without any."""

STRANGE = [
    "",
    " \n\t",
    "\0",
    "\ud800",
    "٣١٤٢",
    "\U0001d7d9\U0001d7da\U0001d7db\U0001d7dc",  # digits that are none of ASCII's
    "12 34 1234",
    "-" * 1000,
    "9" * 100_000,
    "<answer>" * 10_000,
    "</answer><answer></reasoning><reasoning>",
    "{prompt} %s \\1 $&",
    "1,1" * 100_000,
]


@pytest.fixture(params=ENVIRONMENTS.names())
def environment(request):
    return make_environment({request.param: SETTINGS.get(request.param, {})})


def rng(seed=0):
    return random.Random(seed)


def test_environment_is_one_and_has_its_registered_name(environment):
    assert isinstance(environment, Environment)
    assert ENVIRONMENTS.find(environment.name) is type(environment)


def test_environment_same_generator_gives_the_same_tasks(environment):
    again = make_environment(copy.deepcopy(environment))
    assert environment.sample(20, rng(1)) == again.sample(20, rng(1)) != again.sample(20, rng(2))
    assert environment.held_out(5, rng(1)) == again.held_out(5, rng(1))


def test_environment_uses_the_generator_handed_in_only(environment):
    before = random.getstate()
    environment.sample(5, rng())
    environment.held_out(5, rng())
    assert random.getstate() == before


@pytest.mark.parametrize("n", [0, 1, 32, 300])
def test_environment_gives_as_many_tasks_as_asked_for(environment, n):
    assert len(environment.sample(n, rng())) == n
    assert len(environment.held_out(n, rng())) <= n


def test_environment_never_samples_a_held_out_task(environment):
    sampled = {task.id for seed in range(20) for task in environment.sample(100, rng(seed))}
    held_out = {task.id for seed in range(20) for task in environment.held_out(100, rng(seed))}
    assert sampled
    assert held_out
    assert not sampled & held_out
    assert {task.id for task in evaluation_tasks(environment, 100, rng())} <= held_out


def test_environment_held_out_tasks_do_not_repeat(environment):
    ids = [task.id for task in environment.held_out(50, rng())]
    assert len(set(ids)) == len(ids)


def test_environment_numbers_each_task_once(environment):
    inner = getattr(environment, "environment", environment)
    tasks = [inner.task(index) for index in range(min(inner.size, 3000))]
    assert len({task.id for task in tasks}) == len({task.prompt for task in tasks}) == len(tasks)


def test_environment_right_answer_succeeds_and_a_wrong_one_does_not(environment):
    for task in environment.sample(10, rng()) + environment.held_out(10, rng()):
        in_format = f"<reasoning>so</reasoning><answer>{task.expected}</answer>"
        answer = in_format if environment.name == "reasoning" else task.expected
        assert succeeded(environment, task, environment.score(task, answer))
        assert not succeeded(environment, task, environment.score(task, f"{answer}0"[::-1] + "x"))


@pytest.mark.parametrize("completion", STRANGE, ids=lambda text: ascii(text[:12]))
def test_environment_scores_any_text(environment, completion):
    (task,) = environment.sample(1, rng())
    rewards = environment.score(task, completion)
    assert rewards
    assert set(map(type, rewards.values())) == {float}
    assert succeeded(environment, task, rewards) is False
    assert environment.faults == {}


def test_environment_tasks_can_be_written_as_json(environment):
    for task in environment.sample(3, rng()):
        assert json.loads(json.dumps(dict(task.metadata))) == task.metadata
        assert task.expected is not None


def test_environment_can_be_sent_to_another_process(environment):
    sent = pickle.loads(pickle.dumps(environment))
    assert sent.sample(3, rng()) == environment.sample(3, rng())
    assert sent.faults == environment.faults
