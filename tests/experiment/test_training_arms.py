"""Arms that are configurations: of the Trainer, of supervised fine-tuning, of reinforcement learning; and stages."""

import pytest
import torch

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Metrics
from hookline.experiment.builtin_benchmarks import SortingBenchmark
from hookline.loops.worker_config import DataOptions, ModelOptions, TinyModel, WorkerConfig
from hookline.testing import character_tokenizer, tiny_causal_lm

X = torch.linspace(-1, 1, 16).unsqueeze(1)
DATA = torch.utils.data.TensorDataset(X, 2 * X)
OTHER = torch.utils.data.TensorDataset(X, -X)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def model():
    return torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))


def config(**settings):
    return hl.TrainerConfig(**{"max_steps": 6, "batch_size": 4, "learning_rate": 0.05, "summary": False} | settings)


def arm(name="a", settings=None, **parts):
    parts = {"model": model, "train_data": DATA, "loss": torch.nn.functional.mse_loss} | parts
    return hl.Arm(name, settings or config(), **parts)


def losses(directory):
    rows = [record for record in read(directory) if isinstance(record, Metrics) and record.axis == "train"]
    return [row.values["loss"] for row in rows if "loss" in row.values]


def test_trainer_arm_gives_what_a_trainer_gives(tmp_path):
    hl.Experiment("e", [arm()], repeats=2, output_dir=tmp_path / "e").run()
    for seed in (0, 1):
        torch.manual_seed(seed)
        settings = config(seed=seed, output_dir=str(tmp_path / "plain"))
        trainer = hl.Trainer(model(), DATA, config=settings, loss=torch.nn.functional.mse_loss)
        trainer.fit()
        assert losses(tmp_path / "e" / f"a-r{seed}") == [row.metrics["loss"] for row in trainer.history]


def test_trainer_arm_given_a_model_begins_each_run_with_its_weights(tmp_path):
    given = model()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    arms = [arm("a", model=given), arm("b", model=given)]
    hl.Experiment("e", arms, output_dir=tmp_path).run()
    assert losses(tmp_path / "a-r0") == losses(tmp_path / "b-r0")
    assert all(torch.equal(before[name], tensor) for name, tensor in given.state_dict().items())


def test_trainer_arm_given_a_loader_draws_the_same_order_whatever_ran_before(tmp_path):
    def loader():
        order = torch.Generator().manual_seed(5)
        return torch.utils.data.DataLoader(DATA, batch_size=4, shuffle=True, generator=order)

    settings = config(batch_size=None)
    shared = loader()
    arms = [arm("a", settings, train_data=shared), arm("b", settings, train_data=shared)]
    hl.Experiment("e", arms, output_dir=tmp_path / "both").run()
    hl.Experiment("e", [arm("b", settings, train_data=loader())], output_dir=tmp_path / "alone").run()
    assert losses(tmp_path / "both" / "b-r0") == losses(tmp_path / "alone" / "b-r0")


def test_trainer_arm_benchmarks_are_answered_by_what_the_arm_says(tmp_path):
    class Sign(hl.Benchmark):
        name = "sign"

        def tasks(self):
            return [rl.Task(text, expected="+") for text in ("0.5", "0.25")]

        def score(self, task, output):
            return output == task.expected

    def answers(trainer):
        def answer(prompts):
            with torch.no_grad():
                values = trainer.model(torch.tensor([[float(prompt)] for prompt in prompts]))
            return ["+" if value > 0 else "-" for value in values]

        return answer

    made = hl.Experiment("e", [arm(answers=answers)], benchmarks=[Sign()], output_dir=tmp_path / "a").run()
    assert made.arms[0].runs[0].metrics["sign/accuracy"] in (0.0, 0.5, 1.0)
    with pytest.raises(hl.OptionError, match="Nothing answers its benchmarks"):
        hl.Experiment("e", [arm()], benchmarks=[Sign()], output_dir=tmp_path / "b")


def test_stages_second_begins_with_the_first_ones_weights(tmp_path):
    given = model()[0::2]  # no dropout: the loss of a batch is one number
    stages = [hl.Stage("first"), hl.Stage("second", train_data=OTHER)]
    settings = config(batch_size=16, shuffle=False)
    made = hl.Experiment("e", [arm("a", settings, model=given)], stages=stages, output_dir=tmp_path).run()
    first, second = made.arms[0].runs
    assert (first.run_key, first.stage, second.run_key, second.stage) == ("a-r0-s0", "first", "a-r0-s1", "second")
    saved = torch.load(first.artifacts.checkpoints[-1].path / "model.pt", weights_only=True)
    given.load_state_dict(saved)
    expected = torch.nn.functional.mse_loss(given(X), -X).item()
    assert losses(tmp_path / "a-r0-s1")[0] == expected


def test_stages_third_may_start_from_the_first(tmp_path):
    stages = ["first", "second", hl.Stage("third", start_from="first")]
    hl.Experiment("e", [arm()], stages=stages, output_dir=tmp_path).run()
    assert losses(tmp_path / "a-r0-s1") == losses(tmp_path / "a-r0-s2")


def test_stages_may_start_from_a_checkpoint_of_another_run(tmp_path):
    first = hl.Experiment("e", [arm()], output_dir=tmp_path / "a").run().arms[0].runs[0]
    stage = hl.Stage("on", start_from=first.artifacts.checkpoints[-1].path)
    hl.Experiment("e", [arm()], stages=[stage], output_dir=tmp_path / "b").run()
    assert losses(tmp_path / "b" / "a-r0-s0")[0] != losses(tmp_path / "a" / "a-r0")[0]


def test_stages_after_one_that_failed_are_skipped(tmp_path):
    stages = [hl.Stage("first", loss=lambda output, target: (output - target).mean() * float("nan")), "second"]
    made = hl.Experiment("e", [arm(), arm("b")], stages=stages, output_dir=tmp_path).run()
    reported = [(run.status, (run.error or "").strip().splitlines()[-1][:43]) for run in made.arms[0].runs]
    assert reported == [
        ("failed", "hookline._engine.errors.NonFiniteError: The"),
        ("skipped", "a-r0-s0, which it starts from, failed."),
    ]


def test_stages_of_a_function_pass_on_what_it_saves(tmp_path):
    def train(ctx, run):
        state = {"x": 0}
        run.checkpoint_with(
            save=lambda directory: (directory / "x.txt").write_text(str(state["x"])),
            load=lambda directory: state.update(x=int((directory / "x.txt").read_text())),
        )
        began = state["x"]
        for _ in run.steps(3):
            state["x"] += 1
        run.save_checkpoint()
        return {"began": began}

    made = hl.Experiment("e", [hl.Arm("a", train)], stages=["a", "b"], output_dir=tmp_path).run()
    assert [run.metrics["began"] for run in made.arms[0].runs] == [0, 3]


def test_stage_that_changes_what_is_not_there_is_refused(tmp_path):
    stages = [hl.Stage("a", learning_rat=1.0)]
    with pytest.raises(hl.OptionError, match="Arm 'a': .*TrainerConfig has no 'learning_rat'. Did you mean"):
        hl.Experiment("e", [arm()], stages=stages, output_dir=tmp_path)


def rows(n):
    return [{"prompt": f"{i % 10}>", "completion": f"{i % 10}"} for i in range(n)]


def test_sft_arm_trains_and_answers_its_benchmarks(tmp_path):
    settings = WorkerConfig(
        model=ModelOptions(tiny=TinyModel(hidden_size=16)),
        data=DataOptions(train=rows(16)),
        train=config(max_steps=4),
        save_model=False,
    )
    arms = hl.grid(settings, **{"train.learning_rate": [1e-2, 1e-3]})
    made = hl.Experiment("e", arms, benchmarks=[SortingBenchmark(n=4)], output_dir=tmp_path).run()
    assert [arm.name for arm in made.arms] == ["learning_rate=0.01", "learning_rate=0.001"]
    for each in made.arms:
        (run,) = each.runs
        assert run.status == "completed", run.error
        assert 0.0 <= run.metrics["sorting/accuracy"] <= 1.0
        assert len(losses(run.output_dir)) == 4


def test_rl_arm_learns_in_its_own_process_with_benchmarks_within(tmp_path):
    tokenizer = character_tokenizer("0123456789>= ,")
    settings = rl.RLConfig(
        curriculum=rl.CurriculumConfig(
            lessons=[rl.Lesson("copy", rl.make_environment("copying"))], micro_eval_frequency=0, eval_frequency=0
        ),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=3),
        train=config(max_steps=2, batch_size=None),
    )
    language_model = tiny_causal_lm(tokenizer, hidden_size=16)
    given = hl.Arm("grpo", settings, model=language_model, tokenizer=tokenizer)
    scored = []

    class Hears(hl.Callback):
        def on_benchmark_eval(self, ctx, eval_result, predictions, *, step=None):
            scored.append((eval_result.name, step))

    benchmark = SortingBenchmark(n=2, every=1)
    made = hl.Experiment("e", [given], benchmarks=[benchmark], callbacks=[Hears()], output_dir=tmp_path).run()
    assert made.arms[0].runs[0].error is None
    assert scored == [("sorting", 1), ("sorting", 2), ("sorting", None)]
    with pytest.raises(hl.OptionError, match="rolls out in its own process"):
        hl.Experiment("e", hl.grid(given, executor=["ray"]), output_dir=tmp_path / "b")
