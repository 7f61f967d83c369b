"""Stable-Baselines3's own ``learn`` with tiny environments, beyond what the contract suite compares."""

import signal

import pytest

pytest.importorskip("torch")
pytest.importorskip("stable_baselines3")

import gymnasium
import numpy as np
import torch
from host_runs import At, end_of, values
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Figure, Image, Video
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

import hookline as hl
from hookline._record.records import Media, Sample
from hookline.callbacks import SampleLogger
from hookline.integrations.stable_baselines3 import Episode, HooklineCallback

ROLLOUT = 8


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Corridor(gymnasium.Env):
    """Four steps, each of which is rewarded if it goes right."""

    observation_space = gymnasium.spaces.Box(0, 4, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, breaks_at=None):
        self.breaks_at, self.total = breaks_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.total += 1
        if self.total == self.breaks_at:
            raise ZeroDivisionError("the floor is missing")
        return np.full(1, self.steps, np.float32), float(action), self.steps == 4, False, {}


def ppo(env=None, **settings):
    sizes = {"n_steps": ROLLOUT, "batch_size": ROLLOUT, "n_epochs": 1, "policy_kwargs": {"net_arch": [4]}}
    return PPO("MlpPolicy", Corridor() if env is None else env, seed=0, device="cpu", **{**sizes, **settings})


def dqn():
    sizes = {"train_freq": 4, "learning_starts": 8, "batch_size": 4, "buffer_size": 100}
    return DQN("MlpPolicy", Corridor(), policy_kwargs={"net_arch": [4]}, seed=0, device="cpu", **sizes)


class Losses(BaseCallback):
    """Collects what SB3 itself would show of each training."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_step(self):
        return True

    def _on_rollout_start(self):
        self.seen.append(self.logger.name_to_value.get("train/loss"))

    def _on_training_end(self):
        self._on_rollout_start()


def test_ppo_has_a_row_for_each_iteration_and_learns_the_same(options):
    plain = ppo().learn(3 * ROLLOUT)  # before the other is made: both seed the generators of the process
    model, losses = ppo(), Losses()
    with HooklineCallback(**options) as hooks:
        model.learn(3 * ROLLOUT, callback=[losses, hooks])
    assert [value for _, value in values(hooks.loop, "train/loss")] == losses.seen[1:]
    assert values(hooks.loop, "loss") == values(hooks.loop, "train/loss")
    assert values(hooks.loop, "timesteps") == [(1, 8), (2, 16), (3, 24)] == values(hooks.loop, "time/total_timesteps")
    assert len(values(hooks.loop, "rollout/ep_rew_mean")) == 3
    for name, weights in plain.policy.state_dict().items():
        assert torch.equal(weights, model.policy.state_dict()[name])
    assert (hooks.loop.num_steps, hooks.loop.native, end_of(hooks.loop)[0]) == (3, model, "finished")
    assert hooks.loop.model is model.policy


def test_dqn_has_values_of_training_only_where_it_trained(options):
    with HooklineCallback(**options) as hooks:
        dqn().learn(24, callback=hooks, log_interval=1)
    assert values(hooks.loop, "timesteps") == [(step, 4 * step) for step in range(1, 7)]
    assert [step for step, _ in values(hooks.loop, "train/loss")] == [3, 4, 5, 6]  # it starts after 8 timesteps
    assert [step for step, _ in values(hooks.loop, "time/episodes")] == [1, 2, 3, 4, 5, 6]


def test_rollouts_are_the_episodes_that_ended_in_them(options):
    seen = []

    class Keep(hl.Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            seen.append((step_idx, [episode.length for episode in rollouts], type(rollouts[0])))

    with HooklineCallback([Keep(), SampleLogger(n=1)], **options) as hooks:
        ppo().learn(2 * ROLLOUT, callback=hooks)
    assert seen == [(0, [4, 4], Episode), (1, [4, 4], Episode)]
    assert len([record for record in hl.read(hooks.loop.dir) if isinstance(record, Sample)]) == 2


class Draws(BaseCallback):
    """Records media with SB3's logger, and something that nobody can record."""

    def _on_step(self):
        return True

    def _on_rollout_end(self):
        figure = pytest.importorskip("matplotlib.figure").Figure()
        for name, value in {
            "curve": Figure(figure, close=True),
            "view": Image(np.zeros((4, 4, 3), np.uint8), "HWC"),
            "film": Video(torch.zeros(1, 2, 3, 4, 4, dtype=torch.uint8), fps=2),
            "object": object(),
        }.items():
            self.logger.record(f"drawn/{name}", value)
        self.logger.record("drawn/size", 2.5)


def test_media_and_values_of_other_callbacks_are_recorded(options, caplog):
    with HooklineCallback(**options) as hooks:
        ppo().learn(ROLLOUT, callback=[hooks, Draws()])
    media = {record.name: record.type for record in hl.read(hooks.loop.dir) if isinstance(record, Media)}
    assert media == {"drawn/curve": "figure", "drawn/view": "image", "drawn/film": "video"}
    assert values(hooks.loop, "drawn/size") == [(1, 2.5)]
    assert [record.getMessage() for record in caplog.records if "drawn/object" in record.getMessage()] != []


def test_learning_rate_set_by_a_callback_is_used_and_saved(options, tmp_path):
    def lower(loop):
        loop.optimizer.param_groups[0]["lr"] = 0.125

    model = ppo()
    with HooklineCallback([At(1, lower), "learning_rate_monitor"], **options) as hooks:
        model.learn(2 * ROLLOUT, callback=hooks)
    assert [rate for _, rate in values(hooks.loop, "train/learning_rate")] == [3e-4, 0.125]
    assert model.policy.optimizer.param_groups[0]["lr"] == 0.125
    model.save(tmp_path / "saved.zip")
    assert PPO.load(tmp_path / "saved.zip").lr_schedule(1.0) == 0.125


def test_callback_given_without_the_integration_says_what_to_use():
    with pytest.raises(AttributeError, match="hookline.integrations.stable_baselines3"):
        ppo().learn(ROLLOUT, callback=[hl.Callback()])


def test_interrupted_training_stops_after_the_iteration(options):
    with HooklineCallback([At(2, lambda loop: signal.raise_signal(signal.SIGINT))], **options) as hooks:
        model = ppo().learn(9 * ROLLOUT, callback=hooks)
    assert (hooks.loop.step, end_of(hooks.loop)) == (2, ["stopped", "SIGINT"])
    assert model.num_timesteps == 2 * ROLLOUT + 1


def test_rollout_that_another_callback_cuts_short_is_no_step(options):
    class Leave(BaseCallback):
        def _on_step(self):
            return self.num_timesteps < 12

    with HooklineCallback(**options) as hooks:
        ppo().learn(3 * ROLLOUT, callback=[hooks, Leave()])
    assert (hooks.loop.step, end_of(hooks.loop)[0]) == (1, "finished")


def test_checkpoint_holds_the_statistics_of_the_environment_and_the_replay_buffer(options):
    save = At(2, lambda loop: loop.request_checkpoint())
    with HooklineCallback([save], **options) as hooks:
        ppo(VecNormalize(DummyVecEnv([Corridor]))).learn(2 * ROLLOUT, callback=hooks)
    with HooklineCallback([save], replay_buffer=True, **options) as of_dqn:
        dqn().learn(12, callback=of_dqn)
    (normalized,), (buffered,) = hooks.loop.checkpoints, of_dqn.loop.checkpoints
    assert (normalized.path / "vecnormalize.pkl").is_file()
    loaded = DQN.load(buffered.path / "model.zip", Corridor())
    loaded.load_replay_buffer(buffered.path / "replay_buffer.pkl")
    assert (loaded.num_timesteps, loaded.replay_buffer.size()) == (8, 8)


def test_error_of_the_environment_ends_the_run_as_failed_and_leaves_the_logger_alone(options):
    model = ppo(Corridor(breaks_at=12))
    with pytest.raises(ZeroDivisionError), HooklineCallback(**options) as hooks:
        model.learn(3 * ROLLOUT, callback=hooks)
    assert end_of(hooks.loop) == ["failed", "ZeroDivisionError: the floor is missing"]
    assert [type(each).__module__ for each in model.logger.output_formats if "hookline" in type(each).__module__] == []
