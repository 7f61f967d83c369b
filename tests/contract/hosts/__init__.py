"""A host for each trainer in which hookline's callbacks run.

To add a host:

1. Write ``hosts/<name>.py`` with a subclass of `Host` whose `train` trains as the entry's ``training`` says
   (`hosts.trainings`): two epochs of four steps, or eight rounds. The linear regression, its data and its batches are
   in `hosts.regression`, language models in `hosts.language_model`.
2. Add its `Entry` to `TABLE`. It is then in all tests of ``test_hosts.py`` and ``test_builtins_in_hosts.py``, and in
   its group's tables on the page of the matrix.
3. Run them: ``python -m pytest -n 0 tests/contract/test_{hosts,builtins_in_hosts}.py -k <name>``. What differs from the
   reference goes into `hosts.differences`, each time with its reason: moments into ``DIFFERENCES`` (the order counts:
   the changes are applied one after the other), outcomes of requests into ``STEERING_DIFFERENCES``, commands that it
   refuses into ``REFUSED_COMMANDS``, built-in callbacks without an effect into ``IDLE`` or ``PARTLY``, missing
   predictions into ``NO_PREDICTIONS``. A difference that is not needed fails the tests, as one that is missing does.
4. Write ``matrix.json`` and the page: see `hosts.matrix`.
"""

import gc
import sys
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from hosts.base import Host
from hosts.isolated import ISOLATED
from hosts.trainings import EPOCHS_OF_BATCHES, ROUNDS, ROUNDS_AFTER_ONE, Training

OWN, NEURAL, LANGUAGE, JAX, OTHER = (
    "Loops of hookline and of your own",
    "Trainers of neural networks",
    "Trainers of language models",
    "Trainers on JAX",
    "Boosting, scikit-learn and reinforcement learning",
)
"""The groups of the matrix: each has its own tables."""


@dataclass(frozen=True)
class Entry:
    """The description of a host for the tests and the page.

    Attributes:
        place: The module and the class of its `Host`.
        package: The package without which its tests are skipped.
        title: Its name on the page of the matrix.
        group: The tables of the matrix that it is in.
        training: How it trains, and so what its facts are compared with.
        regresses: Whether it trains the linear regression, so that its losses are those of the reference.
        stand_in: Whether the tests run a stand-in of its callback interface instead of the framework itself.
        in_process: Whether it trains in the process of the test.
        isolated: Whether its package is installed in `ISOLATED`, where others do not find it.
    """

    place: str
    package: str
    title: str
    group: str
    training: Training = EPOCHS_OF_BATCHES
    regresses: bool = True
    stand_in: bool = False
    in_process: bool = True
    isolated: bool = False


TABLE = {
    "trainer": Entry("hosts.trainer:OwnTrainer", "torch", "`hl.Trainer`", OWN),
    "bare_loop": Entry("hosts.bare_loop:BareLoop", "torch", "`hl.run`", OWN),
    "torch": Entry("hosts.torch_loop:TorchLoop", "torch", "torch", OWN),
    "jax": Entry("hosts.jax_loop:JaxLoop", "jax", "JAX", OWN),
    "flax": Entry("hosts.flax_loop:FlaxLoop", "flax", "Flax, Optax", OWN),
    "accelerate": Entry("hosts.accelerate_loop:Accelerate", "accelerate", "Accelerate", OWN),
    "fabric": Entry("hosts.fabric_loop:FabricLoop", "lightning", "Lightning Fabric", OWN),
    "deepspeed": Entry("hosts.deepspeed_loop:DeepSpeed", "deepspeed", "DeepSpeed", OWN, isolated=True),
    "learner": Entry("hosts.learner:Learner", "transformers", "`rl.train`", OWN, regresses=False),
    "lightning": Entry("hosts.lightning:Lightning", "lightning", "Lightning", NEURAL),
    "ignite": Entry("hosts.ignite_engine:Ignite", "ignite", "Ignite", NEURAL),
    "fastai": Entry("hosts.fastai_learner:Fastai", "fastai", "fastai", NEURAL),
    "keras": Entry("hosts.keras:Keras", "keras", "Keras", NEURAL),
    "composer": Entry("hosts.composer_trainer:Composer", "torch", "Composer", NEURAL, stand_in=True),
    "ultralytics": Entry("hosts.ultralytics_yolo:Ultralytics", "torch", "ultralytics", NEURAL, stand_in=True),
    "ray": Entry("hosts.ray_train:RayTrain", "ray", "Ray Train", NEURAL, in_process=False),
    "huggingface": Entry("hosts.huggingface:HuggingFace", "transformers", "Hugging Face", LANGUAGE),
    "trl_sft": Entry("hosts.trl_sft:TrlSFT", "trl", "TRL SFT", LANGUAGE, regresses=False),
    "trl_grpo": Entry("hosts.trl_grpo:TrlGRPO", "trl", "TRL GRPO", LANGUAGE, regresses=False),
    "unsloth": Entry("hosts.unsloth_sft:Unsloth", "trl", "Unsloth", LANGUAGE, regresses=False, stand_in=True),
    "sentence_transformers": Entry(
        "hosts.sentence_embeddings:SentenceTransformers",
        "sentence_transformers",
        "sentence-transformers",
        LANGUAGE,
        regresses=False,
    ),
    "verl": Entry("hosts.verl_trainer:Verl", "torch", "verl", LANGUAGE, ROUNDS, regresses=False, stand_in=True),
    "prime_rl": Entry(
        "hosts.prime_rl_monitor:PrimeRL", "torch", "prime-rl", LANGUAGE, ROUNDS, regresses=False, stand_in=True
    ),
    "tunix": Entry("hosts.tunix_trainer:Tunix", "tunix", "Tunix", JAX, ROUNDS_AFTER_ONE),
    "levanter": Entry("hosts.levanter_trainer:Levanter", "jax", "Levanter", JAX, ROUNDS, stand_in=True),
    "maxtext": Entry("hosts.maxtext_loop:MaxText", "jax", "MaxText", JAX, ROUNDS, stand_in=True),
    "xgboost": Entry("hosts.xgboost:XGBoost", "xgboost", "XGBoost", OTHER, ROUNDS, regresses=False),
    "lightgbm": Entry("hosts.lightgbm:LightGBM", "lightgbm", "LightGBM", OTHER, ROUNDS, regresses=False),
    "catboost": Entry("hosts.catboost:CatBoost", "catboost", "CatBoost", OTHER, ROUNDS, regresses=False),
    "sklearn": Entry("hosts.sklearn:ScikitLearn", "sklearn", "scikit-learn", OTHER, ROUNDS, regresses=False),
    "stable_baselines3": Entry(
        "hosts.stable_baselines3:StableBaselines3",
        "stable_baselines3",
        "Stable-Baselines3",
        OTHER,
        ROUNDS,
        regresses=False,
    ),
}
"""Every host by its name."""
HOSTS = [name for name, entry in TABLE.items() if entry.in_process]
"""Those that train in the process of the test; Ray Train has workers."""
REGRESSING = [name for name in HOSTS if TABLE[name].regresses]
"""Those that train the linear regression; the others train language models, trees or policies."""


def make(name: str, directory: Path) -> Host:
    """Return a host; skips the test if its package is not installed."""
    entry = TABLE[name]
    is_installed = (ISOLATED / entry.package).is_dir() if entry.isolated else find_spec(entry.package) is not None
    if not is_installed:
        pytest.skip(f"{entry.package} is not installed")
    return made(entry.place, directory)


def made(place: str, directory: Path) -> Host:
    """Return the host of a module and class."""
    module, _, kind = place.partition(":")
    host: Host = getattr(import_module(module), kind)(directory)
    _set_imports_aside()
    return host


_modules = 0


def _set_imports_aside() -> None:
    """Spare the garbage collector the modules imported since: some trainers call it at each end of a training."""
    global _modules
    if len(sys.modules) > _modules + 100:
        _modules = len(sys.modules)
        gc.collect()
        gc.freeze()


__all__ = ["HOSTS", "REGRESSING", "TABLE", "Entry", "Host", "made", "make"]
