"""`rl.wrap_environment`: what it accepts, its options, and what it refuses."""

import asyncio
import json
import random
from types import SimpleNamespace

import gymnasium
import pytest
from foreign.game import Plan
from foreign.gymnasium_game import Game
from foreign.stand_ins.tinker import Env, EnvGroupBuilder, ModelInput, StepResult
from foreign.trl_game import Guesser
from scripted_policy import ScriptedChat, worker

from hookline import rl
from hookline._engine.errors import ConfigError, OptionError
from hookline.rl.environments import make_environment

gymnasium.register(id="hookline/Guess-v0", entry_point=lambda: Game(Plan()), disable_env_checker=True)
ROWS = [{"prompt": "one?", "answer": "1"}]


def rollouts_of(environment, write, **rollout):
    settings = {"prompts": 1, "group_size": 2, "max_tokens": 40} | rollout
    made = worker(ScriptedChat(write), environment=environment, rollout=settings)
    rollouts = made.roll_out()
    made.close_hooks()
    assert made.faults == {}
    return rollouts


def always(text):
    return lambda prompt, rng: text


def texts(rollout):
    return [message["content"] for message in [*rollout.task.messages, *rollout.completion.messages]]


def action_of(text):
    """What a configuration names as ``parse``."""
    return int(text.removeprefix("guess "))


def make_guess():
    """What a configuration names as an environment."""
    return Game(Plan())


def test_wrap_gymnasium_environment_with_a_spec_makes_further_ones():
    environment = rl.wrap_environment(gymnasium.make("hookline/Guess-v0", disable_env_checker=True), seeds=1)
    assert environment.name == "hookline/Guess-v0"
    rollouts = rollouts_of(environment, always("0"))
    assert [each.rewards for each in rollouts] == [{"reward": 1.0}] * 2


def test_wrap_gymnasium_environment_shows_instructions_and_says_which_action_is_not_valid():
    environment = rl.wrap_environment(make_guess, seeds=1, instructions="Guess.")
    said = iter(["none", "12", "my guess is 0"])
    (rollout,) = rollouts_of(environment, lambda prompt, rng: next(said), group_size=1)
    problem = "That is not a valid action: end with a number from 0 to 9."
    assert texts(rollout) == ["Guess.\n\ndigit?", "none", problem, "12", problem, "my guess is 0"]
    assert (rollout.turns, rollout.total) == (3, 1.0)


def test_wrap_environment_named_in_a_configuration_has_its_options():
    options = {"seeds": 1, "parse": "test_wrap_environment:action_of", "name": "guess"}
    environment = make_environment({"test_wrap_environment:make_guess": options})
    assert environment.name == "guess"
    assert rollouts_of(environment, always("guess 0"))[0].total == 1.0


@pytest.mark.parametrize(
    ("given", "options", "problem"),
    [
        (7, {}, "7 is no environment of a known project.\nAccepted are:\n- verifiers:"),
        (object, {}, "is no environment of a known project"),
        (Game(Plan()), {}, "Game is one environment, and each episode needs its own"),
        (Guesser(Plan()), {}, "Guesser is one environment, and each episode needs its own"),
        (Guesser, {}, "Guesser cannot be called without arguments: give a function without any"),
        (make_guess, {"parze": int}, "Did you mean 'parse'"),
        (make_guess, {"parse": 4}, "parse=4: give a function, or its import path"),
        (make_guess, {"parse": "nowhere:at_all"}, "parse: 'nowhere:at_all' cannot be imported"),
        (make_guess, {"seeds": 0}, "seeds=0: give a whole number from 1 to"),
        (lambda completions: [1.0], {}, "needs the prompts of reward functions: give dataset="),
        (lambda completions, completion_ids: [1.0], {"dataset": ROWS}, "needs completion_ids"),
        (SimpleNamespace(run_episode=1, taskset=1), {}, "verifiers' version 1"),
    ],
)
def test_wrap_environment_that_is_none_says_what_is_accepted(given, options, problem):
    with pytest.raises((OptionError, ConfigError)) as caught:
        rl.wrap_environment(given, **options)
    assert problem in str(caught.value)


def test_wrap_gymnasium_environment_with_actions_that_need_a_function_says_so():
    with pytest.raises(OptionError, match="give a function from a text"):
        rl.wrap_environment(lambda: gymnasium.make("Pendulum-v1"))


def test_wrap_environment_of_ours_is_returned():
    environment = make_environment("sorting")
    assert rl.wrap_environment(environment) is environment


class Counter:
    """An environment of OpenEnv in this process: its observations have the reward."""

    def __init__(self):
        self.left = 2

    def reset(self, seed=None, episode_id=None):
        return SimpleNamespace(text=f"seed {seed}", reward=None, done=False)

    def step(self, action):
        self.left -= action["by"]
        return SimpleNamespace(text=f"{self.left} left", reward=float(action["by"]), done=self.left == 0)

    @property
    def state(self):
        return self.left


def test_wrap_openenv_environment_takes_json_actions_and_adds_up_rewards():
    environment = rl.wrap_environment(Counter, seeds=1, render=lambda observation: observation.text)
    said = iter(["one", json.dumps({"by": 1}), json.dumps({"by": 1})])
    (rollout,) = rollouts_of(environment, lambda prompt, rng: next(said), group_size=1)
    assert texts(rollout)[0] == "seed 0"
    assert "not a valid action" in texts(rollout)[2]
    assert texts(rollout)[4] == "1 left"
    assert (rollout.rewards, rollout.turn_rewards) == ({"reward": 2.0}, [{}, {"reward": 1.0}, {"reward": 1.0}])


def test_wrap_openenv_environment_shows_fields_of_an_observation_as_json():
    class Named(Counter):
        def reset(self, seed=None):
            return SimpleNamespace(observation={"text": "go", "reward": 0, "done": False}, reward=None, done=False)

    (rollout,) = rollouts_of(rl.wrap_environment(Named, seeds=1), always('{"by": 2}'), group_size=1)
    assert texts(rollout)[0] == '{"text": "go"}'


def test_wrap_trl_environment_gives_reward_functions_what_trl_gives_them():
    seen = []

    async def quality(prompts, completions, completion_ids, environments, answer, log_metric, trainer_state):
        seen.append((prompts, completions, len(completion_ids[0]), answer, trainer_state))
        log_metric("quality", 0.5)
        return [environments[0]._digit / 2]

    environment = rl.wrap_environment(lambda: Guesser(Plan()), dataset=ROWS, rewards=[quality])
    (rollout,) = rollouts_of(environment, always("no"), group_size=1)
    assert rollout.rewards == {"Guesser": 0.0, "quality": 0.5}
    prompt, completion = [{"role": "user", "content": "one?"}], [{"role": "assistant", "content": "no"}]
    assert seen == [([prompt], [completion], 3, ["1"], None)]


def test_wrap_trl_reward_functions_may_be_async_and_none_is_no_reward():
    async def later(completions, **columns):
        await asyncio.sleep(0)
        return [None, 1.0]

    environment = rl.wrap_environment([later], dataset=ROWS, held_out_share=0)
    task = environment.sample(1, random.Random(0))[0]
    assert environment.score_many([task, task], ["a", "b"]) == [{}, {"later": 1.0}]


class Question(Env):
    """One turn of tinker-cookbook, ended by a text."""

    def __init__(self, expected):
        self.expected = expected

    async def initial_observation(self):
        return ModelInput.from_ints([70, 71]), ["!", 1]

    async def step(self, action):
        return StepResult(float(len(action) == self.expected), True, ModelInput.from_ints([]), [])


class Group(EnvGroupBuilder):
    cleaned = 0

    async def make_envs(self):
        return [Question(3)]

    async def compute_group_rewards(self, trajectory_group, env_group):
        ((trajectory,), (environment,)) = trajectory_group, env_group
        return [(len(trajectory.transitions) + 0.5, {"expected": environment.expected})]

    async def cleanup(self):
        Group.cleaned += 1


def test_wrap_tinker_environments_of_rows_end_turns_at_their_texts():
    policy = ScriptedChat(always("ab"))
    stops = []
    generate = policy.generate

    def remember(prompts, n, sampling):
        stops.append(list(sampling.stop))
        return generate(prompts, n, sampling)

    policy.generate = remember
    environment = rl.wrap_environment(Question, dataset=[{"expected": 3}])
    made = worker(policy, environment=environment, rollout={"prompts": 1, "group_size": 1})
    (rollout,) = made.roll_out()
    made.close_hooks()
    assert (rollout.rewards, list(rollout.completion.prompt_ids)) == ({"reward": 1.0}, [70, 71])
    assert stops[0][0] == "!"


def test_wrap_tinker_group_builder_adds_the_reward_of_the_group_and_cleans_up():
    Group.cleaned = 0
    rollouts = rollouts_of(rl.wrap_environment(Group()), always("ab"))
    assert [each.rewards for each in rollouts] == [{"reward": 1.0, "group_reward": 1.5}] * 2
    assert Group.cleaned == 2


def test_wrap_verifiers_environment_with_rewards_of_groups_is_refused():
    environment = SimpleNamespace(rollout=1, get_dataset=1, rubric=1, requires_group_rollouts=True)
    with pytest.raises(OptionError, match="compare the rollouts of a group"):
        rl.wrap_environment(environment)


def test_wrap_environment_whose_close_raises_keeps_the_rewards(caplog):
    class Broken(Game):
        def close(self):
            raise OSError("gone")

    rollouts = rollouts_of(rl.wrap_environment(lambda: Broken(Plan()), seeds=1), always("0"))
    assert [each.total for each in rollouts] == [1.0, 1.0]
    assert "Broken.close() raised OSError: gone" in caplog.text
