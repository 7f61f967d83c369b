"""The GRPO learner: rows, hooks, checkpoints and callbacks of a Trainer, with rollouts as data."""

import math
import random
import threading
from dataclasses import replace

import pytest
from scripted_policy import ScriptedPolicy, curriculum
from test_subscribers import NEEDS_ARGUMENTS, built_in

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Event, Metrics, Sample
from hookline.callbacks import CheckpointCallback, EarlyStoppingCallback
from hookline.hooks import CheckpointHook, Hook, MetricsHook, PeriodicHook
from hookline.rl.environments import RewardDataset, Sorting
from hookline.testing import RecordingCallback

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils.data import DataLoader  # noqa: E402 - torch may be missing

from hookline.loops import sft  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>x")


def ends_early(prompts, completions, **columns):
    return [1.0 - 0.1 * len(completion) for completion in completions]


def has_a_digit(prompts, completions, **columns):
    return [float(any(character.isdigit() for character in completion)) for completion in completions]


def rows():
    """Rewarded such that even a model that knows nothing gets different rewards."""
    made = [{"prompt": f"{number}>", "answer": str(number)} for number in range(100)]
    return RewardDataset(made, [ends_early, has_a_digit])


def tiny(seed=0):
    return tiny_causal_lm(TOKENIZER, hidden_size=16, layers=1, heads=2, seed=seed)


class Setup:
    """A learner, its worker and its model."""

    def __init__(
        self, *, grpo=None, hooks=(), callbacks=None, lessons=None, rollout=None, model=None, policy=None, **train
    ):
        self.model = tiny() if model is None else model
        lessons = lessons or curriculum(rl.Lesson("lesson", rows()))
        rollout = {"prompts": 3, "group_size": 4, "max_tokens": 5, "samples": None} | (rollout or {})
        config = rl.RolloutWorkerConfig(
            curriculum_config=lessons,
            rollout=rl.RolloutConfig(**rollout),
            output_dir=None,
            strict=train.get("strict", True),
        )
        policy = policy or rl.HFPolicy(self.model, TOKENIZER)
        self.worker = rl.RolloutWorker(config, policy=policy, hooks=hooks)
        train = {"max_steps": 4, "output_dir": None, "summary": False, "strict": True, "learning_rate": 1e-2} | train
        self.learner = rl.GRPOLearner(
            self.model,
            self.worker,
            pad_id=TOKENIZER.pad_token_id,
            config=hl.TrainerConfig(**train),
            grpo=rl.GRPOConfig(**(grpo or {})),
            temperature=config.rollout.temperature,
            top_p=config.rollout.top_p,
            callbacks=callbacks,
        )

    def fit(self):
        return self.learner.fit()

    def records(self, kind, axis=None):
        found = [record for record in read(self.learner.dir) if isinstance(record, kind)]
        return [record for record in found if axis is None or record.axis == axis]

    def rows(self, axis="train"):
        found = [(record.step, record.values) for record in self.records(Metrics, axis)]
        return [(step, values) for step, values in found if not any("hooks/" in name for name in values)]

    def samples(self):
        return [
            (each.step, each.prompt, each.completion, each.rewards, each.advantage)
            for each in self.records(Sample, "rollout")
        ]


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


# The rows


def test_learner_row_has_everything_that_is_worth_knowing(tmp_path):
    made = Setup(output_dir=str(tmp_path), grpo={"beta": 0.1})
    made.fit()
    steps = made.rows()
    assert [step for step, _ in steps] == [1, 2, 3, 4]
    assert {
        "loss", "reward/mean", "reward/std", "rewards/ends_early/mean", "rewards/ends_early/std",
        "rewards/has_a_digit/mean", "rewards/has_a_digit/std", "groups/zero_variance", "kl", "entropy",
        "clip_share", "ratio", "completions/length_mean", "completions/length_max", "completions/truncated",
        "policy/version", "policy/staleness", "tokens_per_second", "success_rate", "tokens", "rollouts",
        "learning_rate", "grad_norm", "seconds/generate", "seconds/score", "seconds/learn", "seconds/weights",
        "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "clip_ratio/low_min",
        "clip_ratio/high_max",
    } <= set(steps[0][1])  # fmt: skip
    assert [values["policy/version"] for _, values in steps] == [0, 1, 2, 3]
    assert all(values["policy/staleness"] == 0 and values["tokens_per_second"] > 0 for _, values in steps)
    assert steps[0][1]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert steps[0][1]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert steps[-1][1]["kl"] > 0


def test_learner_row_has_the_numbers_of_the_rollouts_it_learnt_from(tmp_path):
    made = Setup(output_dir=str(tmp_path))
    made.fit()
    rollouts = dict(made.rows("rollout"))
    names = ("reward/mean", "reward/std", "groups/zero_variance", "completions/truncated", "completions/length_mean")
    assert [{name: values[name] for name in names} for _, values in made.rows()] == [
        {name: rollouts[step][name] for name in names} for step in (1, 2, 3, 4)
    ]
    samples = made.records(Sample, "rollout")
    assert [sum(each.step == step for each in samples) for step in (1, 2, 3, 4)] == [12] * 4
    totals = [each.total for each in samples if each.step == 1]
    assert rollouts[1]["reward/mean"] == pytest.approx(sum(totals) / 12)


def test_learner_groups_in_which_all_did_equally_well_are_counted_and_teach_nothing():
    def same(prompts, completions, **columns):
        return [0.47] * len(prompts)

    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(50)], [same])
    made = Setup(lessons=curriculum(rl.Lesson("lesson", environment)), rollout={"group_size": 7}, max_steps=2)
    before = weights(made.model)
    metrics = made.fit().metrics
    assert (metrics["groups/zero_variance"], metrics["loss"]) == (1.0, 0.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())


def test_learner_several_updates_learn_from_the_same_rollouts(tmp_path):
    made = Setup(output_dir=str(tmp_path), grpo={"updates": 2}, max_steps=6)
    made.fit()
    steps = [values for _, values in made.rows()]
    assert [values["policy/version"] for values in steps] == [0, 0, 2, 2, 4, 4]
    assert [step for step, _ in made.rows("rollout")] == [1, 2, 3]
    assert steps[0]["ratio"] == pytest.approx(1.0, abs=1e-5)
    assert abs(steps[1]["ratio"] - 1) > 1e-5
    assert steps[0]["reward/mean"] == steps[1]["reward/mean"] != steps[2]["reward/mean"]


class SeesBatches(hl.Callback):
    """Keeps which rollout steps, by their order, each optimizer step learns from."""

    def __init__(self):
        self.known, self.steps = [], {}

    def on_train_batch_start(self, loop, batch, batch_idx):
        key = batch["ids"].tolist(), batch["advantages"].tolist()
        if key not in self.known:
            self.known.append(key)
        self.steps.setdefault(loop.step + 1, []).append(self.known.index(key))


@pytest.mark.parametrize(
    ("updates", "accumulation", "steps"),
    [
        (2, 2, [[0, 1], [0, 1], [2, 3], [2, 3]]),
        (1, 2, [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (2, 3, [[0, 1, 2], [0, 1, 2], [3, 4, 5], [3, 4, 5]]),
        (3, 1, [[0], [0], [0], [1]]),
    ],
)
def test_learner_updates_with_accumulation_learn_from_all_rollout_steps_of_a_round(updates, accumulation, steps):
    seen = SeesBatches()
    made = Setup(grpo={"updates": updates}, accumulation=accumulation, callbacks=[seen])
    made.fit()
    assert list(seen.steps.values()) == steps


def with_dropout():
    model = tiny()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    with torch.no_grad():  # fresh weights attend to everything alike, and dropout would change little
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(20)
    return model


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("rollout", [{}, {"temperature": 0.7, "top_p": 0.8}])
def test_learner_first_ratio_to_the_weights_that_wrote_is_one_with_dropout(tmp_path, rollout, accumulation):
    options = {"output_dir": str(tmp_path), "rollout": rollout, "accumulation": accumulation}
    made = Setup(model=with_dropout(), grpo={"updates": 2}, **options)
    made.fit()
    first, second, third, fourth = [values["ratio"] for _, values in made.rows()]
    assert (first, third) == pytest.approx((1.0, 1.0), abs=1e-6)
    assert min(abs(second - 1), abs(fourth - 1)) > 1e-4  # they are of later weights, and another dropout


def test_learner_of_a_policy_that_computes_in_another_way_records_the_difference(tmp_path):
    class Another(rl.HFPolicy):
        exact_logprobs = False

        def generate(self, prompts, n, sampling):
            groups = super().generate(prompts, n, sampling)
            return [[replace(each, logprobs=[x - 0.1 for x in each.logprobs]) for each in group] for group in groups]

    model = tiny()
    made = Setup(model=model, policy=Another(model, TOKENIZER), output_dir=str(tmp_path), max_steps=1)
    made.fit()
    ((_, row),) = made.rows()
    assert row["ratio"] == pytest.approx(1.0, abs=1e-6)
    assert row["sampling/sampling_logp_difference/mean"] == pytest.approx(0.1, abs=1e-4)
    assert 1.1 < row["sampling/importance_sampling_ratio/mean"] < math.exp(0.5)


def test_train_learns_with_the_temperature_and_top_p_of_its_rollouts():
    found = []
    config = rl.RLConfig(
        curriculum=curriculum(rl.Lesson("lesson", rows())),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=3, temperature=0.7, top_p=0.8),
        train=hl.TrainerConfig(max_steps=1, output_dir=None, summary=False),
    )
    look = hl.on("train_start", lambda loop: found.append((loop.temperature, loop.top_p)))
    rl.train(config, model=tiny(), tokenizer=TOKENIZER, callbacks=[look])
    assert found == [(0.7, 0.8)]


def test_learner_divergence_that_weighs_much_keeps_the_model_near_its_start():
    def distance(beta):
        made = Setup(grpo={"beta": beta, "updates": 2}, max_steps=16, learning_rate=3e-3)
        return made.fit().metrics["kl"]

    assert distance(5.0) < distance(1e-6) / 2


def test_learner_without_max_steps_raises():
    with pytest.raises(hl.OptionError, match="Rollouts never end: give TrainerConfig.max_steps"):
        Setup(max_steps=None, epochs=1)


# Moments, hooks and callbacks


def test_learner_moments_of_a_step_come_in_order():
    seen = RecordingCallback()
    Setup(callbacks=[seen], max_steps=2).fit()
    step = [
        "on_step_start", "on_train_batch_start", "on_train_batch_end", "on_before_optimizer_step", "on_weights_update",
        "on_step_end", "on_log",
    ]  # fmt: skip
    rollout = ["on_rollout_start", "on_rollout_end"]
    assert seen.names() == [
        "on_train_start", *rollout, "on_train_epoch_start", *step, *rollout, *step, "on_train_epoch_end",
        "on_train_end",
    ]  # fmt: skip
    assert [event.arguments for event in seen.events if event.moment == "on_weights_update"] == [(1,), (2,)]


def test_learner_hooks_run_after_each_rollout_and_are_recorded_in_the_run(tmp_path):
    lessons = curriculum(rl.Lesson("lesson", rows()), micro_eval_frequency=2, micro_eval_n_examples=3)
    seen = RecordingCallback()
    made = Setup(output_dir=str(tmp_path), hooks=None, lessons=lessons, callbacks=[seen])
    made.worker.register_hook(MetricsHook(3, lambda context: {"version": context.metadata["policy/version"]}))
    metrics = made.fit().metrics
    assert [step for step, _ in made.rows("eval")] == [2, 4]
    assert [row for row in made.rows("rollout") if "version" in row[1]] == [(3, {"version": 2})]
    assert metrics["micro_eval/lesson/examples"] == 3
    assert [event.arguments[1] for event in seen.events if event.moment == "on_eval"] == ["micro_eval/lesson"] * 2
    assert len(made.records(Sample, "eval")) == 6


def test_learner_that_records_nothing_keeps_rows_and_samples_of_rollouts_in_memory():
    made = Setup(hooks=[rl.EvaluationHook(4, 3)])
    made.fit()
    assert sum("seconds/learn" in row.metrics for row in made.learner.history) == 4
    assert [row.step for row in made.learner.history if "eval/lesson/examples" in row.metrics] == [4]
    assert len(made.learner.samples) == 4 * 12 + 3


def test_learner_callbacks_get_hook_metrics_with_the_learner_as_the_loop():
    class Loops(hl.Callback):
        def on_log(self, loop, step, metrics):
            logged.append((loop, step, sorted(metrics) if "tracked" in metrics else "row"))

    logged = []
    made = Setup(hooks=[MetricsHook(2, lambda context: {"tracked": 1})], callbacks=[Loops()], max_steps=2)
    made.fit()
    assert logged == [(made.learner, 1, "row"), (made.learner, 2, ["tracked"]), (made.learner, 2, "row")]


def test_learner_stop_requested_by_a_hook_ends_the_training_after_the_step():
    class Stops(Hook):
        def should_run(self, context):
            return context.metadata["policy/version"] == 2

        def run(self, context):
            context.worker.request_stop("good enough")

    artifacts = Setup(hooks=[Stops()], max_steps=50).fit()
    assert (artifacts.step, artifacts.stop_reason) == (3, "good enough")


def test_learner_hook_that_raises_is_isolated_and_recorded(tmp_path):
    def fail(context):
        raise RuntimeError("no such metric")

    made = Setup(hooks=[MetricsHook(1, fail)], strict=False, output_dir=str(tmp_path))
    assert made.fit().step == 4
    failures = [event for event in made.records(Event) if event.name == "hook_error"]
    assert [(event.step, event.data["disabled"]) for event in failures] == [(1, False), (2, False), (3, True)]


def test_learner_hooks_do_not_change_the_training(tmp_path):
    plain, evaluated = (
        Setup(output_dir=str(tmp_path), name="plain"),
        Setup(output_dir=str(tmp_path), name="evaluated", hooks=[rl.EvaluationHook(1, 4)]),
    )
    plain.fit()
    evaluated.fit()
    assert evaluated.samples() == plain.samples()
    assert [values["loss"] for _, values in evaluated.rows()] == [values["loss"] for _, values in plain.rows()]


def test_learner_evaluates_by_hand_after_the_training(tmp_path, caplog):
    made = Setup(output_dir=str(tmp_path))
    made.fit()
    assert made.worker.evaluate_lesson("lesson", 5)["eval/lesson/examples"] == 5
    assert "has ended: the evaluation eval/lesson is not recorded" in caplog.text


@pytest.mark.parametrize("name", built_in())
def test_learner_every_built_in_subscriber_works_in_it(tmp_path, name):
    made = Setup(callbacks=[{name: NEEDS_ARGUMENTS.get(name, {})}], output_dir=str(tmp_path), max_steps=3)
    assert made.fit().step == 3


def test_learner_checkpoint_callback_keeps_the_best_evaluation(tmp_path):
    best = CheckpointCallback(monitor="eval/lesson/reward/mean", mode="max", save_top_k=1, save_last=False)
    made = Setup(
        callbacks=[best],
        hooks=[rl.EvaluationHook(1, 8, evaluate_all_lessons=False)],
        output_dir=str(tmp_path),
        max_steps=5,
    )
    made.fit()
    rewards = {step: values["eval/lesson/reward/mean"] for step, values in made.rows("eval")}
    assert best.best_value == max(rewards.values())
    assert best.best_path is not None
    assert best.best_path.is_dir()


def test_learner_early_stopping_on_a_reward_stops_it():
    stopping = EarlyStoppingCallback(monitor="reward/mean", mode="max", patience=2, min_delta=100.0)
    artifacts = Setup(callbacks=[stopping], max_steps=50).fit()
    assert artifacts.step < 10
    assert "reward/mean" in artifacts.stop_reason


# Taking it up again


class Preempts(hl.Callback):
    def __init__(self, step):
        self.at = step

    def on_step_end(self, loop, step_idx, batch, metrics):
        if loop.step == self.at:
            loop.request_stop("preempted")


@pytest.mark.parametrize(
    ("grpo", "stopped_at", "accumulation"),
    [
        ({}, 3, 1),
        ({"updates": 2}, 3, 1),
        ({"updates": 2}, 4, 1),
        ({"updates": 3, "beta": 0.1}, 4, 1),
        ({"updates": 2}, 3, 2),
        ({"updates": 2, "mini_batches": 2, "micro_batch_size": 5}, 3, 1),
        ({"mini_batches": 3, "micro_batch_size": 3, "dynamic_sampling": True}, 4, 2),
        ({"beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 2, "updates": 2}, 5, 1),
        (
            {"entropy_coef": 0.1, "use_adaptive_entropy": True, "entropy_target": 2.7, "top_entropy_quantile": 0.5},
            4,
            1,
        ),
    ],
)
def test_learner_resume_in_the_middle_repeats_losses_and_samples_exactly(tmp_path, grpo, stopped_at, accumulation):
    def setup(name, callbacks=None, **more):
        hooks = [rl.EvaluationHook(2, 3), CheckpointHook(100)]
        options = {"output_dir": str(tmp_path), "name": name, "grpo": grpo, "max_steps": 7, "schedule": "linear"}
        options["accumulation"] = accumulation
        return Setup(callbacks=callbacks, hooks=hooks, **options, **more)

    whole, first = setup("whole"), setup("broken", [Preempts(stopped_at)])
    whole.fit()
    first.fit()
    second = setup("broken")
    second.learner.resume("last")
    timings = {"tokens_per_second", *(f"seconds/{name}" for name in ("generate", "score", "learn", "weights"))}
    for axis in ("train", "rollout", "eval"):
        steady = [
            [
                (step, {name: value for name, value in values.items() if name not in timings})
                for step, values in made.rows(axis)
            ]
            for made in (second, whole)
        ]
        assert steady[0] == steady[1]
    assert second.samples() == whole.samples()
    assert all(
        torch.equal(tensor, second.model.state_dict()[name]) for name, tensor in whole.model.state_dict().items()
    )


class Sometimes(RewardDataset):
    """Has nothing to ask in every other step."""

    def sample(self, n, rng):
        return [] if rng.random() < 0.5 else super().sample(n, rng)


def test_learner_stopped_within_a_round_makes_it_again_and_repeats_everything_exactly(tmp_path):
    class Stops(hl.Callback):
        begun = 0

        def on_rollout_end(self, loop, step_idx, rollouts):
            self.begun += bool(rollouts) and loop.step == 1
            if not rollouts and self.begun == 1:  # the round has one of its three rollout steps, and waits for others
                loop.request_stop("preempted")

    def setup(name, *callbacks):
        environment = Sometimes([{"prompt": f"{number}>"} for number in range(50)], [ends_early])
        options = {"output_dir": str(tmp_path), "name": name, "max_steps": 4, "accumulation": 3}
        return Setup(callbacks=list(callbacks), lessons=curriculum(rl.Lesson("lesson", environment)), **options)

    whole, first, second = setup("whole"), setup("broken", Stops()), setup("broken")
    whole.fit()
    assert first.fit().step == 1
    second.learner.resume("last")
    assert [values["loss"] for _, values in second.rows()] == [values["loss"] for _, values in whole.rows()]
    assert second.samples() == whole.samples()
    assert [step for step, _ in second.rows("rollout")] == [step for step, _ in whole.rows("rollout")]


def test_learner_resume_continues_rows_of_empty_rollouts_without_a_gap(tmp_path):
    def setup(callbacks=None):
        environment = Sometimes([{"prompt": f"{number}>"} for number in range(50)], [ends_early])
        lessons = curriculum(rl.Lesson("lesson", environment))
        return Setup(callbacks=callbacks, lessons=lessons, output_dir=str(tmp_path), max_steps=6)

    setup([Preempts(3)]).fit()
    made = setup()
    made.learner.resume("last")
    steps = [step for step, _ in made.rows("rollout")]
    assert steps == list(range(1, made.worker.step + 1))
    assert made.worker.step > made.learner.step == 6


@pytest.mark.parametrize("moment", ["on_rollout_end", "on_train_epoch_start", "on_weights_update"])
def test_learner_checkpoint_requested_while_rolling_out_waits_for_the_update(tmp_path, moment):
    class Saves(hl.Callback):
        pass

    def save(self, loop, *arguments):
        if loop.step < 2:
            loop.save_checkpoint()

    setattr(Saves, moment, save)
    options = {"output_dir": str(tmp_path), "max_steps": 5}
    whole = Setup(name="whole", **options)
    first = Setup(name="saved", callbacks=[Saves()], **options)
    whole.fit()
    first.fit()
    saved = [row for row in first.learner.checkpoints if row.step < 5]
    assert saved[0].step == 1
    second = Setup(name="saved", **options)
    second.learner.resume(saved[0].path)
    assert [values["loss"] for _, values in second.rows()] == [values["loss"] for _, values in whole.rows()]


def test_learner_checkpoint_hook_saves_checkpoints_of_the_learner(tmp_path):
    made = Setup(hooks=[CheckpointHook(2)], output_dir=str(tmp_path), max_steps=5, save_at_end=False)
    made.fit()
    assert [row.step for row in made.learner.checkpoints] == [2, 4]


def test_learner_resume_from_a_checkpoint_with_a_flipped_bit_names_the_file(tmp_path):
    Setup(callbacks=[Preempts(2)], output_dir=str(tmp_path), name="flipped").fit()
    (place,) = tmp_path.glob("*/*/checkpoints/*")
    files = sorted(place.iterdir())
    for file in files:
        whole = file.read_bytes()
        file.write_bytes(whole[:-40] + bytes([whole[-40] ^ 2]) + whole[-39:])
        again = Setup(output_dir=str(tmp_path), name="flipped").learner
        with pytest.raises(hl.CheckpointError, match=f"is damaged: .*{file.name}"):
            again.resume(place)
        assert again.step == 0
        file.write_bytes(whole)
    assert {"model.pt", "optimizer.pt", "state.json"} <= {file.name for file in files}


def test_learner_resume_keeps_the_state_of_hooks(tmp_path):
    class Counts(Hook):
        def __init__(self):
            self.runs = 0

        def should_run(self, context):
            return True

        def run(self, context):
            self.runs += 1

        def state_dict(self):
            return {"runs": self.runs}

        def load_state_dict(self, state):
            self.runs = state["runs"]

    Setup(hooks=[Counts()], callbacks=[Preempts(2)], output_dir=str(tmp_path)).fit()
    counts = Counts()
    Setup(hooks=[counts], output_dir=str(tmp_path)).learner.resume("last")
    assert counts.runs == 4


def test_learner_that_failed_resumes_exactly_from_its_checkpoint(tmp_path):
    class Breaks(hl.Callback):
        def on_before_optimizer_step(self, loop, optimizer):
            if loop.step == 3 and not broken:
                broken.append(True)
                raise KeyboardInterrupt

    broken = []
    options = {"output_dir": str(tmp_path), "max_steps": 5, "accumulation": 2}
    whole = Setup(name="whole", **options)
    made = Setup(name="broken", callbacks=[Breaks()], hooks=[CheckpointHook(3)], **options)
    whole.fit()
    with pytest.raises(KeyboardInterrupt):
        made.fit()
    made.learner.resume("last")
    assert [row.step for row in made.learner.checkpoints][:1] == [2]
    assert [values["loss"] for _, values in made.rows()] == [values["loss"] for _, values in whole.rows()]
    assert made.samples() == whole.samples()


def test_learner_resumed_hands_its_weights_to_a_policy_that_has_a_model_of_its_own(tmp_path):
    def setup(callbacks=None):
        return Setup(output_dir=str(tmp_path), max_steps=4, callbacks=callbacks, policy=rl.HFPolicy(tiny(), TOKENIZER))

    setup([Preempts(2)]).fit()
    second, seen = setup(), RecordingCallback()
    second.learner.callbacks.add(seen)
    second.learner.resume("last")
    assert [event.arguments for event in seen.events if event.moment == "on_weights_update"] == [(2,), (3,), (4,)]
    assert [values["policy/version"] for _, values in second.rows()] == [0, 1, 2, 3]
    assert all(values["ratio"] == pytest.approx(1.0, abs=1e-4) for _, values in second.rows())


# Faults


def test_learner_continues_when_the_policy_fails_for_some_steps(caplog):
    class Breaks(rl.HFPolicy):
        calls = 0

        def generate(self, prompts, n, sampling):
            self.calls += 1
            if self.calls in (2, 3):
                raise rl.PolicyError("the server is down")
            return super().generate(prompts, n, sampling)

    model = tiny()
    made = Setup(model=model, policy=Breaks(model, TOKENIZER))
    assert made.fit().step == 4
    assert (made.worker.step, made.worker.faults) == (6, {"policy": 2})
    assert "the server is down" in caplog.text


def test_learner_with_a_reward_that_fails_learns_from_the_others(caplog):
    def broken(prompts, completions, **columns):
        raise ValueError("no answer in the text")

    environment = RewardDataset([{"prompt": f"{number}>"} for number in range(50)], [ends_early, broken])
    made = Setup(lessons=curriculum(rl.Lesson("lesson", environment)))
    before = weights(made.model)
    metrics = made.fit().metrics
    assert metrics["faults/broken"] == 4
    assert "rewards/broken/mean" not in metrics
    assert any(not torch.equal(tensor, before[name]) for name, tensor in made.model.state_dict().items())
    assert "Reward of broken: raised ValueError: no answer in the text" in caplog.text


def test_learner_skips_empty_completions_and_learns_from_the_rest():
    def write(prompt, rng):
        return rng.choice(["", "1", "12"])

    class InVocabulary(ScriptedPolicy):
        def generate(self, prompts, n, sampling):
            return [
                [_tokens(each, prompt) for each in group]
                for prompt, group in zip(prompts, super().generate(prompts, n, sampling), strict=True)
            ]

    def _tokens(completion, prompt):
        ids = TOKENIZER(completion.text)["input_ids"][1:]
        return rl.Completion(completion.text, ids, [-2.0] * len(ids), "stop", TOKENIZER(prompt)["input_ids"])

    metrics = Setup(policy=InVocabulary(write)).fit().metrics
    assert metrics["rollouts"] == 12
    assert metrics["tokens"] < 24


def test_learner_without_any_usable_rollouts_raises():
    made = Setup(policy=ScriptedPolicy(lambda prompt, rng: ""))
    with pytest.raises(RuntimeError, match="100 rollout steps in a row have no usable rollouts"):
        made.fit()


# rl.train


def test_train_from_a_yaml_file_with_overrides(tmp_path):
    path = tmp_path / "sorting.yaml"
    path.write_text(
        """
model:
  tiny: {hidden_size: 16, layers: 1, heads: 2}
curriculum:
  lessons:
    - {id: two, environment: {sorting: {length: 2}}}
    - {id: three, environment: {sorting: {length: 3}}, depends_on: [two]}
  micro_eval_frequency: 2
  micro_eval_n_examples: 4
  eval_frequency: 0
rollout: {prompts: 2, group_size: 3, max_tokens: 4}
grpo: {epsilon: 0.1, beta: 0.01}
train: {name: sorting, max_steps: 50, summary: false, output_dir: runs}
"""
    )
    asked = []
    artifacts = rl.train(path, overrides=["train.max_steps=3", "rollout.group_size=5"], callbacks=[_Keeps(asked)])
    assert (artifacts.step, artifacts.metrics["rollouts"], len(asked[0])) == (3, 10, 10)
    assert artifacts.metrics["micro_eval/two/examples"] == 4
    assert {"kl", "loss", "faults/policy"} & set(artifacts.metrics) == {"kl", "loss"}


class _Keeps(hl.Callback):
    def __init__(self, kept):
        self.kept = kept

    def on_rollout_end(self, loop, step_idx, rollouts):
        self.kept.append(rollouts)


def config(**train):
    return rl.RLConfig(
        curriculum=curriculum(),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=3),
        train=hl.TrainerConfig(**({"max_steps": 2, "output_dir": None, "summary": False} | train)),
    )


def test_train_calls_its_hooks_callbacks_and_functions():
    reports, asked, received, seen = [], [], [], RecordingCallback()
    rl.train(
        config(),
        model=tiny(),
        tokenizer=TOKENIZER,
        hooks=[MetricsHook(1, lambda context: asked.append(context.step) or {})],  # type: ignore[func-returns-value]
        callbacks=[seen],
        custom_logger_fns=[lambda report, step: reports.append((step, "reward/mean" in report))],
        hook_fns={"pre_training_hook": lambda worker, report: received.append("pre_training_hook")},
    )
    assert (reports, len(asked), received) == ([(1, True), (2, True)], 2, ["pre_training_hook"])
    assert seen.names().count("on_step_end") == 2


def test_train_with_one_hook_instead_of_a_list_raises_first():
    with pytest.raises(hl.MomentError, match="give a list of hooks"):
        rl.train(config(), hooks=MetricsHook(1, lambda context: {}))


def test_train_hook_that_returns_what_cannot_be_recorded_is_isolated(caplog):
    hooks = [MetricsHook(1, lambda context: {"lengths": torch.zeros(3)})]
    done = rl.train(config(), model=tiny(), tokenizer=TOKENIZER, hooks=hooks)
    assert (done.step, done.metrics["hooks/metrics_hook/errors"]) == (2, 2)
    assert "metrics_hook failed at run_hook, step 1" in caplog.text


def test_learner_hooks_on_another_thread_are_recorded_at_their_rollout_steps(tmp_path):
    class Waits(PeriodicHook):
        background = True

        def run(self, context):
            assert gate.wait(60)
            return {"waited": context.step}

    gate = threading.Event()
    opens = MetricsHook(3, lambda context: {"opened": gate.set()})  # type: ignore[func-returns-value]
    made = Setup(output_dir=str(tmp_path), hooks=[Waits(1), opens])
    made.fit()
    rows = sorted((step, values["waited"]) for step, values in made.rows("rollout") if "waited" in values)
    assert rows == [(1, 1), (2, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": object()}, "model= and tokenizer= belong together"),
        ({}, "There is no model"),
        ({"overrides": ["train.max_steps=1"]}, "overrides= requires a configuration file"),
        ({"overrides": "train.max_steps=1"}, r"give a list, \['train.max_steps=1'\]"),
    ],
)
def test_train_with_missing_arguments_raises(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        rl.train(config(), **arguments)


@pytest.mark.parametrize(
    "options", [{"rollout_workers": 0}, {"max_staleness": -1}, {"rollout_workers": 2}, {"executor": "threads"}]
)
def test_rl_config_invalid_setting_raises(options):
    with pytest.raises(hl.HooklineError, match=next(iter(options))):
        rl.RLConfig(curriculum=curriculum(), train=hl.TrainerConfig(max_steps=1), **options)


# It learns


def held_out_rate(model, environment, temperature):
    tasks = environment.held_out(100, random.Random(0))
    sampling = rl.Sampling(max_tokens=4, seed=1, temperature=temperature)
    groups = rl.HFPolicy(model, TOKENIZER).generate([task.prompt for task in tasks], 4, sampling)
    right = [each.text == task.expected for task, group in zip(tasks, groups, strict=True) for each in group]
    return sum(right) / len(right)


def test_train_on_sorting_raises_the_success_on_tasks_never_trained_on():
    environment, model = Sorting(3), tiny_causal_lm(TOKENIZER, hidden_size=32)
    rng = random.Random(0)
    examples = [
        {"prompt": task.prompt, "completion": task.expected} for _ in range(60) for task in environment.sample(32, rng)
    ]
    data, collate = sft.prepare(examples, TOKENIZER, sft.SFTOptions(max_length=16))
    settings = {"output_dir": None, "summary": False}
    hl.Trainer(
        model,
        DataLoader(data, batch_size=32, collate_fn=collate),
        config=hl.TrainerConfig(epochs=1, learning_rate=5e-3, **settings),
        training_step=sft.training_step,
    ).fit()
    before = [held_out_rate(model, environment, temperature) for temperature in (1.0, 0.0)]
    learning = hl.TrainerConfig(max_steps=70, learning_rate=2e-3, schedule="linear", gradient_clip_norm=1.0, **settings)
    config = rl.RLConfig(
        curriculum=curriculum(rl.Lesson("sort", environment)),
        rollout=rl.RolloutConfig(prompts=16, group_size=8, max_tokens=4),
        train=learning,
    )
    rl.train(config, model=model, tokenizer=TOKENIZER)
    after = [held_out_rate(model, environment, temperature) for temperature in (1.0, 0.0)]
    assert before[0] < 0.7
    assert after[0] > before[0] + 0.15
    assert after[1] > before[1] + 0.05
