"""Arms that train differently in different stages: SFT first, then GRPO."""

import pytest

import hookline as hl
from hookline import rl
from hookline._engine.errors import ConfigError, OptionError
from hookline.experiment.results.tables import config_differences
from hookline.loops.trainer_config import TrainerConfig
from hookline.loops.worker_config import DataOptions, ModelOptions, TinyModel, WorkerConfig

TINY = ModelOptions(tiny=TinyModel(hidden_size=16, layers=1))


def first(ctx, run):
    for _ in run.steps(1):
        run.log(loss=1.0)
    return {"score": run.config["a"]}


def second(ctx, run):
    for _ in run.steps(1):
        run.log(loss=1.0)
    return {"score": run.config["b"]}


def arm(name="both", b=2.0, stage="late"):
    return hl.Arm(name, {"a": 1.0}, train=first, stages={stage: hl.Arm(name, {"b": b}, train=second)})


def experiment(*arms, stages=("early", "late")):
    return hl.Experiment("staged", arms, stages=list(stages), output_dir="staged")


def test_arm_with_a_stage_of_its_own_trains_that_in_the_stage():
    planned = experiment(arm()).plan()
    assert [(run.stage, run.recipe.function, run.recipe.config) for run in planned] == [
        ("early", first, {"a": 1.0}),
        ("late", second, {"b": 2.0}),
    ]


def test_stage_changes_are_put_on_what_trains_in_the_stage():
    planned = experiment(arm(), stages=[hl.Stage("early"), hl.Stage("late", b=5.0)]).plan()
    assert planned[1].recipe.config == {"b": 5.0}


def test_arm_with_a_stage_that_there_is_not_is_refused_with_the_closest():
    with pytest.raises(OptionError, match="Arm 'both': stages='lade': no such stage. Did you mean 'late'?"):
        experiment(arm(stage="lade"))


@pytest.mark.parametrize("given", [["grpo"], "grpo"])
def test_arm_stages_that_are_no_mapping_are_refused(given):
    with pytest.raises(OptionError, match="give a mapping of stage names to trainings"):
        hl.Arm("both", {"a": 1.0}, train=first, stages=given)


def test_arm_stage_that_nothing_trains_is_refused():
    with pytest.raises(OptionError, match="has nothing that trains"):
        hl.Arm("both", {"a": 1.0}, train=first, stages={"late": {"b": 1.0}})


def test_settings_of_stages_are_compared_in_reports_and_when_resumed(tmp_path):
    arms = [arm("low"), arm("high", b=3.0)]
    made = [hl.ArmResult(each.name, each.settings()) for each in arms]
    assert config_differences(made) == {"low": {"stages.late.b": 2.0}, "high": {"stages.late.b": 3.0}}
    begun = experiment(*arms)
    begun.store.open("staged", begun.describe())
    begun.store.close()
    with pytest.raises(ConfigError, match=r"arm 'low': stages.late.config.b was 2.0, now it is 4.0"):
        experiment(arm("low", b=4.0)).check()


def test_grpo_stage_begins_with_the_weights_of_the_sft_stage(torch):
    rows = [{"prompt": "1+1=", "completion": "2"}]
    train = {"device": "cpu", "learning_rate": 1e-9, "max_steps": 1}
    sft = WorkerConfig(
        model=TINY,
        data=DataOptions(train=rows),
        train=TrainerConfig(**train | {"learning_rate": 0.1}),
        save_model=False,
    )
    grpo = rl.RLConfig(
        model=TINY,
        curriculum=rl.CurriculumConfig([rl.Lesson("sums", "arithmetic")], micro_eval_frequency=0, eval_frequency=0),
        rollout=rl.RolloutConfig(prompts=2, group_size=2, max_tokens=2),
        train=TrainerConfig(**train),
    )
    arms = [hl.Arm("both", sft, stages={"grpo": grpo})]
    result = hl.Experiment("sums", arms, stages=["sft", "grpo"], output_dir="sums").run(report=False)
    assert [(run.stage, run.status) for run in result.runs] == [("sft", "completed"), ("grpo", "completed")]
    shown, rewarded = (torch.load(run.artifacts.checkpoints[-1].path / "model.pt") for run in result.runs)
    assert all(torch.allclose(shown[name], rewarded[name], atol=1e-6) for name in shown)
