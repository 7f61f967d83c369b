"""What wrapped callbacks of all frameworks have in common: how they are recognised, named, ordered and copied."""

import copy
import logging
import os
import pickle
import subprocess
import sys
import warnings

os.environ.setdefault("KERAS_BACKEND", "torch")

import pytest

from hookline._engine.collection import CallbackCollection
from hookline._engine.errors import HooklineError, MomentError, NotOfferedError, OptionError
from hookline.compat import wrap
from hookline.testing import FakeLoop, RecordingCallback, check_callback

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    transformers = pytest.importorskip("transformers")
    lightning = pytest.importorskip("lightning.pytorch")
    keras = pytest.importorskip("keras")


class Recording(transformers.TrainerCallback):  # type: ignore[name-defined]
    def __init__(self):
        self.seen = []

    def on_train_begin(self, args, state, control, **kwargs):
        self.seen.append("on_train_begin")


def test_wrap_names_the_callback_after_its_class():
    collection = CallbackCollection([wrap(transformers.EarlyStoppingCallback()), wrap(Recording()), wrap(Recording())])
    assert collection.names() == ["early_stopping_callback", "recording", "recording_2"]
    assert repr(collection["recording"]) == "wrap(Recording)"


def test_wrap_accepts_subscriber_options():
    collection = CallbackCollection([wrap(Recording()), wrap(Recording(), name="first", priority=10)])
    assert collection.names() == ["first", "recording"]
    with pytest.raises(OptionError, match="unknown option prioritty=10. Did you mean 'priority'"):
        wrap(Recording(), prioritty=10)


def test_wrap_of_another_object_lists_what_is_accepted():
    accepted = "TrainerCallback, a lightning.pytorch.Callback or a keras.callbacks.Callback"
    with pytest.raises(MomentError, match=accepted):
        wrap(object())
    with pytest.raises(MomentError, match="hookline's callbacks need no wrapping"):
        wrap(RecordingCallback())
    with pytest.raises(MomentError, match=r"Recording is a class: give an instance, wrap\(Recording\(...\)\)"):
        wrap(Recording)


def test_wrap_imports_no_framework():
    code = (
        "import sys\nfrom hookline.compat import wrap\n"
        "try:\n    wrap(object())\nexcept TypeError:\n    pass\n"
        "print(sorted({'transformers', 'lightning', 'pytorch_lightning', 'keras', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_wrap_subscribes_only_to_overridden_methods():
    wrapped = wrap(lightning.callbacks.LambdaCallback(on_train_epoch_end=print))
    moments = {name for name in vars(wrapped) if name.startswith("on_")}
    assert "on_train_epoch_end" in moments
    assert moments.isdisjoint({"on_step_start", "on_step_end", "on_train_batch_end", "on_before_optimizer_step"})


def test_wrap_warns_about_methods_that_are_never_called(caplog):
    caplog.set_level(logging.WARNING, logger="hookline")
    wrap(lightning.callbacks.LambdaCallback(on_after_backward=print, on_test_end=print, on_train_end=print))
    (record,) = caplog.records
    assert record.getMessage() == (
        "Lightning's LambdaCallback: hookline's loops never call its on_after_backward, on_test_end. "
        "on_before_optimizer_step comes when the gradients are complete."
    )


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copy_of_a_wrapped_callback_has_its_own_callback(copied):
    wrapped = wrap(Recording())
    other = copied(wrapped)
    loop = FakeLoop(callbacks=[other])
    loop.callbacks.on_train_start(loop)
    assert (wrapped.foreign.seen, other.foreign.seen) == ([], ["on_train_begin"])


@pytest.mark.parametrize(
    "foreign",
    [
        Recording,
        transformers.EarlyStoppingCallback,
        transformers.PrinterCallback,
        lambda: lightning.callbacks.EarlyStopping("loss", strict=False),
        lightning.callbacks.Timer,
        lightning.callbacks.LearningRateMonitor,
        lambda: keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.History,
    ],
)
@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric")
def test_wrapped_callback_passes_the_subscriber_contract(foreign):
    check_callback(lambda: wrap(foreign()))


def test_wrap_args_are_for_hugging_face_only():
    with pytest.raises(OptionError, match="Lightning's callbacks do not use TrainingArguments"):
        wrap(lightning.callbacks.Callback(), args={"eval_delay": 1})


def test_not_offered_error_is_an_attribute_error_of_hookline():
    assert issubclass(NotOfferedError, AttributeError)
    assert issubclass(NotOfferedError, HooklineError)
