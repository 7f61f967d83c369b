"""Experiments from files: what the settings amount to, and where errors point."""

import json
import sys
from pathlib import Path

import pytest

from hookline import ConfigError
from hookline.experiment import Experiment
from hookline.loops.worker_config import WorkerConfig
from hookline.rl.learner.config import RLConfig

ARMS = """
import hookline as hl

NUMBER = 3


def train(ctx, run):
    for _ in run.steps(2):
        run.log(loss=run.config["lr"])
    run.save_checkpoint()
    return {"score": run.config["lr"]}


def finish(ctx, run):
    return {"score": run.config["temperature"]}


def one_argument(ctx):
    return {}


class Silent(hl.Callback):
    pass
"""
SFT = """
base:
  sft:
    model: {tiny: {hidden_size: 16, layers: 1}}
    data: {train: [{prompt: "1+1=", completion: "2"}]}
    train: {max_steps: 20, batch_size: 2}
"""
FUNCTION = """
base: {function: "my_arms:train", config: {lr: 1.0, steps: 5}}
"""
STAGED = """
base:
  function: "my_arms:train"
  config: {lr: 1.0}
  stages: {late: {function: "my_arms:finish", config: {temperature: 0.5}}}
stages: [early, late]
"""
GRPO = """{rl: {model: {tiny: {layers: 1}}, curriculum: {lessons: [{id: sort, environment: {sorting: {length: 2}}}]},
      train: {max_steps: 2}}}"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """The experiment of a text in a file, in an empty directory with a module beside the file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_arms", raising=False)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "my_arms.py").write_text(ARMS)

    def make(text, *overrides, name="exp.yaml"):
        path = tmp_path / "files" / name
        path.write_text(text)
        return Experiment.from_file(path, overrides)

    yield make
    sys.modules.pop("my_arms", None)


def rates(experiment):
    return {arm.name: arm.config.train.learning_rate for arm in experiment.arms}


def configs(experiment):
    return {arm.name: arm.config for arm in experiment.arms}


def trained(experiment):
    """The settings of each run of a first repeat, by its arm and its stage."""
    return {(run.arm, run.stage): run.recipe.config for run in experiment.plan() if run.repeat == 0}


def error_of(load, text, *overrides):
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value).removeprefix(f"{Path.cwd()}/files/")


def test_arms_by_dotted_paths_and_by_mappings_override_the_base(load):
    experiment = load(
        SFT
        + """
arms:
  low: {train.learning_rate: 1e-4}
  high: {train: {learning_rate: 1e-2}}
  plain:
"""
    )
    assert rates(experiment) == {"low": 1e-4, "high": 1e-2, "plain": None}
    assert {arm.config.train.max_steps for arm in experiment.arms} == {20}
    assert (experiment.name, experiment.output_dir) == ("exp", Path("runs/exp"))


def test_base_alone_is_one_arm(load):
    experiment = load(FUNCTION, "repeats=3", "name=again", "output_dir=out")
    assert [run.key for run in experiment.plan()] == ["base-r0", "base-r1", "base-r2"]
    assert (experiment.name, experiment.output_dir) == ("again", Path("out"))


def test_grid_besides_arms_gives_an_arm_for_each_combination(load):
    experiment = load(FUNCTION + "arms: {first: {lr: 0.5}}\ngrid: {lr: [0.1, 0.2], steps: [5, 6]}\n")
    assert configs(experiment) == {
        "first": {"lr": 0.5, "steps": 5},
        "lr=0.1,steps=5": {"lr": 0.1, "steps": 5},
        "lr=0.1,steps=6": {"lr": 0.1, "steps": 6},
        "lr=0.2,steps=5": {"lr": 0.2, "steps": 5},
        "lr=0.2,steps=6": {"lr": 0.2, "steps": 6},
    }


def test_arms_may_each_have_a_configuration_of_their_own(load):
    experiment = load(
        SFT
        + """
arms:
  sft: {train.max_steps: 3}
  rl:
    rl:
      model: {tiny: {layers: 1}}
      curriculum: {lessons: [{id: sort, environment: {sorting: {length: 2}}}]}
      train: {max_steps: 2}
  function: {function: "my_arms:train", config: {lr: 2.0}}
"""
    )
    assert [type(arm.config) for arm in experiment.arms] == [WorkerConfig, RLConfig, dict]


def test_file_in_json_and_in_toml_is_read_as_well(load):
    values = {"base": {"function": "my_arms:train", "config": {"lr": 1.0}}, "arms": {"low": {"lr": 0.1}}}
    toml = '[base]\nfunction = "my_arms:train"\nconfig = {lr = 1.0}\n[arms.low]\nlr = 0.1\n'
    wanted = {"low": {"lr": 0.1}}
    assert configs(load(json.dumps(values), name="a.json")) == configs(load(toml, name="a.toml")) == wanted


def test_overrides_reach_arms_base_and_grid(load):
    text = SFT + "arms: {low: {train.learning_rate: 1e-4}, high: {train: {learning_rate: 1e-2}}}\n"
    text += "grid: {train.learning_rate: [1.0]}\n"
    overrides = ["repeats=3", "base.sft.train.max_steps=5", "arms.low.train.learning_rate=1e-5"]
    experiment = load(text, *overrides, "grid.train.learning_rate=[2.0, 3.0]", "arms.new={train.learning_rate: 7}")
    assert rates(experiment) == {
        "low": 1e-5,
        "high": 1e-2,
        "new": 7.0,
        "learning_rate=2.0": 2.0,
        "learning_rate=3.0": 3.0,
    }
    assert ({arm.config.train.max_steps for arm in experiment.arms}, experiment.repeats) == ({5}, 3)


def test_stages_change_settings_on_top_of_each_arm(load):
    experiment = load(
        SFT
        + """
arms: {low: {train.learning_rate: 1e-4}, high: {train.learning_rate: 1e-2}}
stages:
  - short
  - {name: long, train.max_steps: 50}
  - {name: other, start_from: short, train: {max_steps: 7}, model: {tiny: null, path: some-model}}
"""
    )
    plan = [(run.key, run.start_from, run.recipe.config.train.max_steps) for run in experiment.plan()[:3]]
    assert plan == [("low-r0-s0", None, 20), ("low-r0-s1", "low-r0-s0", 50), ("low-r0-s2", "low-r0-s0", 7)]
    assert [run.recipe.config.train.learning_rate for run in experiment.plan()] == [1e-4] * 3 + [1e-2] * 3
    assert experiment.plan()[2].recipe.config.model.path == "some-model"


def test_options_of_sft_are_set_by_their_path_and_inside_a_mapping(load):
    arms = "arms: {low: {sft.max_length: 8}, high: {sft: {max_length: 9}, train.max_steps: 1}, given:}\n"
    experiment = load(SFT + arms, "arms.given.sft.max_length=7")
    assert {arm.name: arm.config.sft.max_length for arm in experiment.arms} == {"low": 8, "high": 9, "given": 7}
    assert experiment.arms[1].config.train.max_steps == 1


def test_arm_with_a_stage_trains_that_in_the_stage_and_itself_in_the_others(load):
    arms = f"arms:\n  both: {{train.learning_rate: 1e-3, stages: {{grpo: {GRPO}}}}}\n  one:\nstages: [sft, grpo]\n"
    made = trained(load(SFT + arms))
    assert {key: type(config) for key, config in made.items()} == {
        ("both", "sft"): WorkerConfig,
        ("both", "grpo"): RLConfig,
        ("one", "sft"): WorkerConfig,
        ("one", "grpo"): WorkerConfig,
    }
    assert (made["both", "sft"].train.learning_rate, made["both", "grpo"].train.learning_rate) == (1e-3, None)


def test_stages_of_the_base_are_those_of_all_arms_that_do_not_say_otherwise(load):
    experiment = load(
        STAGED
        + """
arms:
  plain:
  other: {lr: 2.0, stages: {late: {function: "my_arms:finish", config: {temperature: 0.1}}}}
  itself: {stages: {late: null}}
  whole: {function: "my_arms:train", config: {lr: 3.0}}
grid: {lr: [4.0]}
"""
    )
    assert trained(experiment) == {
        ("plain", "early"): {"lr": 1.0},
        ("plain", "late"): {"temperature": 0.5},
        ("other", "early"): {"lr": 2.0},
        ("other", "late"): {"temperature": 0.1},
        ("itself", "early"): {"lr": 1.0},
        ("itself", "late"): {"lr": 1.0},
        ("whole", "early"): {"lr": 3.0},
        ("whole", "late"): {"temperature": 0.5},
        ("lr=4.0", "early"): {"lr": 4.0},
        ("lr=4.0", "late"): {"temperature": 0.5},
    }
    assert {key[0] for key in trained(load(STAGED))} == {"base"}


def test_settings_of_a_stage_override_those_of_its_training(load):
    text = SFT + f"  stages: {{grpo: {GRPO}}}\nstages: [sft, {{name: grpo, rollout.prompts: 3, train.max_steps: 9}}]\n"
    made = trained(load(text))
    assert (made["base", "grpo"].rollout.prompts, made["base", "grpo"].train.max_steps) == (3, 9)
    assert made["base", "sft"].train.max_steps == 20


def test_overrides_and_dotted_paths_reach_what_trains_in_stages(load):
    text = STAGED.replace("late", "v1.5")
    arms = """
arms:
  low: {stages: {early: {function: "my_arms:finish", config.temperature: 0.1}}}
  high: {stages.early.function: "my_arms:finish", stages.early.config: {temperature: 0.2}, stages: {v1.5: null}}
  own: {function: "my_arms:train", config: {lr: 1.0}, stages: {early: {function: "my_arms:finish"}}}
"""
    overrides = ["arms.low.stages.early.config.temperature=0.7", "arms.own.stages.early.config.temperature=0.8"]
    assert trained(load(text + arms, *overrides)) == {
        ("low", "early"): {"temperature": 0.7},
        ("low", "v1.5"): {"temperature": 0.5},
        ("high", "early"): {"temperature": 0.2},
        ("high", "v1.5"): {"lr": 1.0},
        ("own", "early"): {"temperature": 0.8},
        ("own", "v1.5"): {"temperature": 0.5},
    }
    assert trained(load(STAGED, "base.stages.late.config.temperature=0.9"))["base", "late"] == {"temperature": 0.9}


def test_stage_with_a_training_of_its_own_is_read_from_toml(load):
    text = """
stages = ["early", "late"]
[arms.only]
function = "my_arms:train"
config = {lr = 1.0}
[arms.only.stages.late]
function = "my_arms:finish"
config = {temperature = 0.5}
"""
    assert trained(load(text, name="a.toml")) == {
        ("only", "early"): {"lr": 1.0},
        ("only", "late"): {"temperature": 0.5},
    }


def test_function_arms_of_a_module_beside_the_file_run(load):
    experiment = load(FUNCTION + "arms: {low: {lr: 0.1}, high: {lr: 2.0}}\ncallbacks: [{use: 'my_arms:Silent'}]\n")
    result = experiment.run(report=False)
    assert {row.arm: row.mean for row in result.table("score")} == {"low": 0.1, "high": 2.0}


def test_stages_of_arms_run_as_each_of_them_says(load):
    arms = "arms: {plain: {}, other: {stages.late: {function: 'my_arms:finish', config: {temperature: 0.1}}}}\n"
    result = load(STAGED + arms).run(report=False)
    assert [(run.run_key, run.metrics["score"]) for run in result.runs] == [
        ("plain-r0-s0", 1.0),
        ("plain-r0-s1", 0.5),
        ("other-r0-s0", 1.0),
        ("other-r0-s1", 0.1),
    ]


WRONG = {
    "a key at the top": (
        FUNCTION + "repeat: 3\n",
        "exp.yaml:3: repeat: unknown key. Did you mean 'repeats'?",
    ),
    "a key of an arm by its path": (
        SFT + "arms:\n  low: {train.learning_rat: 1}\n",
        "exp.yaml:8: arms.low.train.learning_rat: unknown key. Did you mean 'learning_rate'?",
    ),
    "a key of an arm inside a mapping": (
        SFT + "arms:\n  low:\n    train: {learning_rat: 1}\n",
        "exp.yaml:9: arms.low.train.learning_rat: unknown key. Did you mean 'learning_rate'?",
    ),
    "a key of the base": (
        SFT.replace("max_steps", "max_stepps") + "arms: {low: {train.learning_rate: 1}}\n",
        "exp.yaml:6: base.sft.train.max_stepps: unknown key. Did you mean 'max_steps'?",
    ),
    "a key of the grid": (
        SFT + "grid: {train.learning_rat: [1]}\n",
        "exp.yaml:7: grid.train.learning_rat[0]: unknown key. Did you mean 'learning_rate'?",
    ),
    "a value of the grid": (
        SFT + "grid: {train.learning_rate: [1.0, -1.0]}\n",
        "exp.yaml:7: grid.train.learning_rate[1]: TrainerConfig(learning_rate=-1.0): give a number above 0.",
    ),
    "a setting of a function": (
        FUNCTION + "arms: {low: {lrr: 1}}\n",
        "exp.yaml:3: arms.low.lrr: unknown setting. Did you mean 'lr'? A new one needs a default in base.config.",
    ),
    "a setting twice": (
        FUNCTION + "arms: {low: {a.b: 1, a: {b: 2}}}\n",
        "exp.yaml:3: arms.low.a: is given twice, by its path and inside a mapping.",
    ),
    "no repeats": (FUNCTION + "repeats: 0\n", "exp.yaml:3: repeats: 0 was given, int >= 1 is accepted."),
    "nothing": ("name: nothing\n", "exp.yaml:1: there is nothing to run: give a base, arms or a grid."),
    "an arm without a trainer": (
        "arms:\n  low: {lr: 1}\n",
        "exp.yaml:2: arms.low: nothing trains it: give it sft, rl or function, or give the file a base.",
    ),
    "two kinds in an arm": (
        "arms:\n  low: {function: 'my_arms:train', rl: {}}\n",
        "exp.yaml:2: arms.low.function: rl is given already: one of sft, rl, function trains.",
    ),
    "a setting beside a whole configuration": (
        "arms:\n  low: {function: 'my_arms:train', lr: 1}\n",
        (
            "exp.yaml:2: arms.low.lr: unknown key. Known: answers, config, function, stages. "
            "Its settings go inside config."
        ),
    ),
    "a base of no kind": (
        "base: {stf: {}}\n",
        "exp.yaml:1: base.stf: Nothing trains: give sft, rl or function. Did you mean 'sft'?",
    ),
    "a base of stages alone": (
        "base: {stages: {late: {function: 'my_arms:finish'}}}\nstages: [early, late]\n",
        "exp.yaml:1: base: Nothing trains: give sft, rl or function. Known: function, rl, sft.",
    ),
    "two arms of one name": (
        FUNCTION + "arms: {'lr=1': {lr: 2}}\ngrid: {lr: [1]}\n",
        "exp.yaml:4: grid: two arms are called 'lr=1'. Give each a different name.",
    ),
    "a name with a slash": (
        FUNCTION + "arms: {a/b: {}}\n",
        (
            "exp.yaml:3: arms.a/b: Arm('a/b'): give a name of at most 150 bytes without slashes, which a directory "
            "can have."
        ),
    ),
    "a module that is not there": (
        "base: {function: 'my_arm:train'}\n",
        "exp.yaml:1: base.function: 'my_arm:train' cannot be imported: ModuleNotFoundError: No module named 'my_arm'.",
    ),
    "a function that is not there": (
        "base: {function: 'my_arms:trains'}\n",
        "exp.yaml:1: base.function: 'my_arms' has no 'trains'. Did you mean 'train'?",
    ),
    "what is no function": (
        "base: {function: 'my_arms:NUMBER'}\n",
        "exp.yaml:1: base.function: 'my_arms:NUMBER' is 3, which is not a function.",
    ),
    "a benchmark": (
        FUNCTION + "benchmarks: [arithmetc]\n",
        "exp.yaml:3: benchmarks[0]: Nothing is registered as 'arithmetc'. Did you mean 'arithmetic'?",
    ),
    "a callback": (
        FUNCTION + "callbacks: [{early_stoping: {}}]\n",
        (
            "exp.yaml:3: callbacks[0].early_stoping: Nothing is registered as 'early_stoping'. "
            "Did you mean 'early_stopping'?"
        ),
    ),
    "a callback of the base": (
        SFT.replace("batch_size: 2", "callbacks: [early_stoping]"),
        (
            "exp.yaml:6: base.sft.train.callbacks[0]: Nothing is registered as 'early_stoping'. "
            "Did you mean 'early_stopping'?"
        ),
    ),
    "a sink": (
        FUNCTION + "sinks: [cvs]\n",
        "exp.yaml:3: sinks[0]: Nothing is registered as 'cvs'. Did you mean 'csv'?",
    ),
    "an executor": (
        FUNCTION + "executor: locl\n",
        "exp.yaml:3: executor: there is no such executor. Did you mean 'local'?",
    ),
    "an option of an executor": (
        FUNCTION + "executor: {local: {processes: 0}}\n",
        "exp.yaml:3: executor: processes=0: give a whole number of at least 1.",
    ),
    "a stage without a name": (
        FUNCTION + "stages:\n  - {start_from: a}\n",
        "exp.yaml:4: stages[0]: name is missing: give the stage a name.",
    ),
    "a key of a stage": (
        SFT + "stages: [a, {name: b, start_form: a}]\n",
        "exp.yaml:7: stages[1].start_form: unknown key. Did you mean 'start_from'?",
    ),
    "a setting of a stage": (
        SFT + "stages: [a, {name: b, train.max_stepps: 2}]\n",
        "exp.yaml:7: stages[1].train.max_stepps: unknown key. Did you mean 'max_steps'?",
    ),
    "no end": (
        SFT.replace("max_steps: 20, ", "") + "arms:\n  a: {train.max_steps: 1}\n  b:\n",
        (
            "exp.yaml:9: arms.b: arm 'b': The training has no end: give TrainerConfig(epochs=...) or "
            "TrainerConfig(max_steps=...)."
        ),
    ),
    "a misspelt stages of an arm": (
        SFT + "arms:\n  low: {stage: {}}\n",
        "exp.yaml:8: arms.low.stage: unknown key. Did you mean 'stages'?",
    ),
    "a stage of an arm that there is not": (
        STAGED + "arms:\n  low:\n    stages: {lade: {}}\n",
        "exp.yaml:9: arms.low.stages.lade: there is no stage 'lade'. Did you mean 'late'?",
    ),
    "a stage of the base in a file without stages": (
        STAGED.replace("stages: [early, late]", ""),
        (
            "exp.yaml:5: base.stages.late: there is no stage 'late'. The file has none: give it a list of them under "
            "stages."
        ),
    ),
    "stages of an arm as a list": (
        STAGED + "arms:\n  low: {stages: [late]}\n",
        (
            "exp.yaml:8: arms.low.stages: ['late'] was given, a mapping is accepted, of a stage's name to what trains "
            "in it."
        ),
    ),
    "a stage of an arm as a word": (
        STAGED + "arms:\n  low: {stages: {late: rl}}\n",
        "exp.yaml:8: arms.low.stages.late: 'rl' was given, a mapping with one of sft, rl, function is accepted.",
    ),
    "nothing in a stage of an arm": (
        STAGED + "arms:\n  low: {stages: {early: null}}\n",
        "exp.yaml:8: arms.low.stages.early: Nothing trains: give sft, rl or function. Known: function, rl, sft.",
    ),
    "a kind in a stage of an arm": (
        STAGED + "arms:\n  low: {stages: {late: {stf: {}}}}\n",
        "exp.yaml:8: arms.low.stages.late.stf: Nothing trains: give sft, rl or function. Did you mean 'sft'?",
    ),
    "two kinds in a stage of an arm": (
        STAGED + "arms:\n  low: {stages: {late: {function: 'my_arms:finish', rl: {}}}}\n",
        "exp.yaml:8: arms.low.stages.late.function: rl is given already: one of sft, rl, function trains.",
    ),
    "stages in a stage of an arm": (
        STAGED + "arms:\n  low: {stages: {late: {function: 'my_arms:finish', stages: {}}}}\n",
        (
            "exp.yaml:8: arms.low.stages.late.stages: unknown key. Known: answers, config, function. "
            "Its settings go inside config."
        ),
    ),
    "a key in a stage of the base": (
        SFT + f"  stages:\n    grpo: {GRPO.replace('max_steps', 'max_stepps')}\nstages: [sft, grpo]\n",
        "exp.yaml:9: base.stages.grpo.rl.train.max_stepps: unknown key. Did you mean 'max_steps'?",
    ),
    "a setting of a stage that what trains in it does not have": (
        SFT + f"  stages: {{grpo: {GRPO}}}\nstages: [sft, {{name: grpo, grop.epsilon: 3}}]\n",
        ("exp.yaml:9: stages[1].grop: unknown key. Did you mean 'grpo'?"),
    ),
    "a function of a stage": (
        STAGED + "arms:\n  low: {stages: {late: {function: 'my_arms:finnish'}}}\n",
        "exp.yaml:8: arms.low.stages.late.function: 'my_arms' has no 'finnish'. Did you mean 'finish'?",
    ),
    "a stage of an arm twice": (
        STAGED + "arms:\n  low: {stages.late.config: {}, stages: {late: null}}\n",
        "exp.yaml:8: arms.low.stages: is given twice, by its path and inside a mapping.",
    ),
    "no end in a stage of an arm": (
        SFT + f"arms:\n  low: {{stages: {{grpo: {GRPO.replace('max_steps: 2', '')}}}}}\nstages: [sft, grpo]\n",
        (
            "exp.yaml:8: arms.low.stages.grpo: arm 'low' in stage 'grpo': Rollouts never end: give the RLConfig's "
            "train max_steps."
        ),
    ),
    "rows that are not there": (
        SFT.replace('[{prompt: "1+1=", completion: "2"}]', "no.jsonl"),
        "exp.yaml:5: base.sft.data.train: no.jsonl: cannot be read: No such file or directory.",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_error_names_the_file_the_line_the_path_and_what_to_do(load, what):
    text, message = WRONG[what]
    assert error_of(load, text) == message
    assert not Path("runs").exists()


def test_error_about_a_function_that_cannot_be_called_names_its_arm(load):
    said = error_of(load, "arms:\n  mine: {function: 'my_arms:one_argument'}\n")
    assert said.startswith("exp.yaml:2: arms.mine: Arm 'mine': <function one_argument")
    assert "cannot be called as function(ctx, run): too many positional arguments" in said


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("repeats=0", "repeats: 0 was given, int >= 1 is accepted."),
        ("arms.low.train.learning_rat=1", "arms.low.train.learning_rat: unknown key. Did you mean 'learning_rate'?"),
        ("arms.lo.train.learning_rate=1", "arms.lo.train.learning_rate: there is no arm 'lo'. Did you mean 'low'?"),
        ("arms.low.train.learning_rate='x'", "arms.low.train.learning_rate: 'x' was given, float | null is accepted."),
        ("grid=3", "grid: 3 was given, mapping | null is accepted."),
        ("grid.train.max_steps=3", "grid.train.max_steps: 3 was given, a list of at least one value is accepted."),
    ],
)
def test_error_about_an_override_names_the_command_line(load, override, message):
    assert error_of(load, SFT + "arms: {low: {train.learning_rate: 1}}\n", override) == f"command line: {message}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "arms.low.stages.lade.config.temperature=1",
            "arms.low.stages.lade: there is no stage 'lade'. Did you mean 'late'?",
        ),
        (
            "arms.low.stages.late.config.temperatur=1",
            "arms.low.stages.late.config: Nothing trains: give sft, rl or function. Known: function, rl, sft.",
        ),
        (
            "arms.low.stages=late",
            "arms.low.stages: 'late' was given, a mapping is accepted, of a stage's name to what trains in it.",
        ),
    ],
)
def test_error_about_an_override_of_a_stage_names_the_command_line(load, override, message):
    assert error_of(load, STAGED + "arms: {low: {lr: 1}}\n", override) == f"command line: {message}"


def test_error_about_what_an_override_made_in_a_list_names_the_command_line(load):
    stages = "stages: [early, {name: late, train: {max_steps: 1}}]\n"
    said = error_of(load, SFT + stages, "stages.1.trian.max_steps=3")
    assert said.startswith("command line: stages[1].trian: unknown key. Did you mean 'train'?")
