"""Every wrapped environment of another project keeps the same promises in our rollout worker."""

import random
import re

import pytest
from foreign import CASES
from foreign.game import BAD, Plan
from foreign.trl_game import RewardsCase
from scripted_policy import ScriptedChat, worker

from hookline import rl
from hookline.rl.rollouts import episode_runner

LIMIT = 1.0


def name_of(case):
    return getattr(case, "name", None)


@pytest.fixture(params=CASES, ids=name_of)
def case(request):
    made = request.param()
    yield made
    made.stop()


@pytest.fixture
def plan():
    made = Plan()
    yield made
    made.released.set()


def played(case, environment, **rollout):
    """What a worker makes of ten tasks or more, and the worker."""
    settings = {"prompts": 10, "group_size": 2, "max_tokens": 40, "max_turns": 12} | rollout
    made = worker(ScriptedChat(case.write), environment=environment, rollout=settings)
    rollouts = made.roll_out()
    made.close_hooks()
    return rollouts, made


def faults(made):
    """The failures that the environment and the worker counted."""
    (lesson,) = made.config.curriculum_config.lessons
    return lesson.environment.faults + made.faults


def test_foreign_same_generator_gives_the_same_tasks_and_no_other_is_used(case, plan):
    environment, before = case.environment(plan), random.getstate()
    drawn = environment.sample(8, random.Random(1))
    assert random.getstate() == before
    assert drawn == environment.sample(8, random.Random(1)) != environment.sample(8, random.Random(2))
    assert len({task.id for task in environment.sample(10, random.Random(0))}) == 10


def test_foreign_episodes_are_rewarded_and_the_environment_is_masked(case, plan):
    rollouts, made = played(case, case.environment(plan))
    assert [each.total for each in rollouts] == [1.0] * 20
    assert all(each.success for each in rollouts)
    assert faults(made) == {}
    decode = made.policy.tokenizer.decode
    for each in rollouts:
        own = each.completion
        mask = own.mask or [1] * len(own.token_ids)
        observed = decode([token for token, is_own in zip(own.token_ids, mask, strict=True) if not is_own])
        assert re.fullmatch(case.observation, observed)
        assert all(value == (-0.5 if is_own else 0.0) for value, is_own in zip(own.logprobs, mask, strict=True))
    if case.observation:
        assert max(each.turns for each in rollouts) > 1


def test_foreign_same_seed_gives_the_same_rollouts(case, plan):
    def of(rollouts):
        return [(each.task.id, list(each.completion.token_ids), each.rewards) for each in rollouts]

    first, _ = played(case, case.environment(plan))
    second, _ = played(case, case.environment(plan), max_open_episodes=1)
    assert of(first) == of(second)


@pytest.mark.parametrize("case", [each for each in CASES if each.closes], ids=name_of, indirect=True)
def test_foreign_each_episode_has_its_own_environment_and_closes_it(case, plan):
    rollouts, _ = played(case, case.environment(plan), group_size=8)
    case.stop()
    assert len(rollouts) == plan.opened == plan.closed == 80
    assert plan.most_open > 1


@pytest.mark.parametrize(
    ("case", "fault"), [(each, fault) for each in CASES for fault in each.fails_by], ids=name_of, indirect=["case"]
)
def test_foreign_episode_that_fails_costs_only_itself(case, plan, fault, monkeypatch):
    monkeypatch.setattr(episode_runner, "GRACE_SECONDS", 0.1)
    plan.fault = plan.hangs_on_the_loop if fault == "hangs" and case.is_async else getattr(plan, fault)
    rollouts, made = played(case, case.environment(plan), environment_seconds=LIMIT)
    assert len(rollouts) == 18
    assert {each.total for each in rollouts} == {1.0}
    assert sum(faults(made).values()) == 2
    if case.closes and fault != "hangs":
        case.stop()
        assert plan.opened == plan.closed == 20


@pytest.mark.parametrize("case", [each for each in CASES if each.gives_none], ids=name_of, indirect=True)
def test_foreign_reward_of_none_stays_none(case, plan):
    plan.unrewarded = True
    rollouts, made = played(case, case.environment(plan))
    assert len(rollouts) == 18
    assert faults(made) == {}
    assert str(BAD) not in [each.task.expected for each in rollouts]


def test_foreign_limit_of_turns_ends_episodes_and_is_no_fault(case, plan):
    rollouts, made = played(case, case.environment(plan), max_turns=1)
    assert faults(made) == {}
    if case.observation:
        assert {each.completion.finish for each in rollouts} <= {"turns", "stop"}
    assert all(each.turns == 1 for each in rollouts)
    assert isinstance(made, rl.RolloutWorker)


def test_foreign_reward_function_that_returns_garbage_gives_no_rewards(plan):
    case = RewardsCase()
    plan.fault = plan.garbage
    rollouts, made = played(case, case.environment(plan))
    assert (rollouts, faults(made)) == ([], {"right": 1})
