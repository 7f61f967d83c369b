"""SampleLogger: which samples of rollouts and validations are recorded."""

from dataclasses import dataclass

import pytest

import hookline as hl
from hookline import rl
from hookline._record.reader import read
from hookline._record.records import Sample
from hookline.callbacks import SampleLogger
from hookline.testing import FakeLoop


@dataclass
class Rollout:
    prompt: str
    completion: str


class Answer:
    def __init__(self, prompt, completion):
        self.prompt, self.completion, self._cache = prompt, completion, None


def test_sample_logger_records_rollouts_of_a_worker_by_what_is_in_them():
    rollout = rl.Rollout(rl.Task("1+1=", "2"), rl.Completion("3"), {"right": 0.0}, lesson="sums")
    (sample,) = rolled_out(SampleLogger(), [rollout])
    reported = {name: sample[name] for name in ("prompt", "completion", "expected", "rewards", "lesson", "group")}
    assert reported == {
        "prompt": "1+1=", "completion": "3", "expected": "2", "rewards": {"right": 0.0}, "lesson": "sums",
        "group": rollout.task.id,
    }  # fmt: skip


def rolled_out(callback, rollouts, steps=1):
    loop = FakeLoop(callbacks=[callback])
    for step_idx in range(steps):
        loop.step = step_idx
        loop.callbacks.on_rollout_end(loop, step_idx, rollouts)
    return loop.samples


@pytest.mark.parametrize(
    "rollouts",
    [
        [{"prompt": "1+1", "completion": "2"}, {"prompt": "2+2", "completion": "4"}],
        [Rollout("1+1", "2"), Rollout("2+2", "4")],
        [Answer("1+1", "2"), Answer("2+2", "4")],
        {"prompt": ["1+1", "2+2"], "completion": ("2", "4"), "mean_reward": 0.5},
    ],
)
def test_sample_logger_finds_samples_in_rollouts(rollouts):
    assert rolled_out(SampleLogger(n=1), rollouts) == [{"step": 0, "prompt": "1+1", "completion": "2"}]


def test_sample_logger_takes_the_first_of_every_so_many_rollouts():
    samples = rolled_out(SampleLogger(n=2, every=3), [{"prompt": text} for text in "abc"], steps=7)
    assert [(sample["step"], sample["prompt"]) for sample in samples] == [(2, "a"), (2, "b"), (5, "a"), (5, "b")]


def test_sample_logger_takes_what_make_says():
    make = lambda rollouts: ({"prompt": prompt, "completion": prompt.upper()} for prompt in rollouts)  # noqa: E731
    assert rolled_out(SampleLogger(n=1, make=make), "abc") == [{"step": 0, "prompt": "a", "completion": "A"}]


def validated(tmp_path, callback, validations):
    with hl.run(root=tmp_path, callbacks=[callback], strict=True, summary=False) as run:
        for _ in run.steps(validations):
            with run.validate() as val:
                for batch in val.batches([{"prompt": ["a", "b"]}, {"prompt": ["c", "d"]}]):
                    val.log(loss=float(len(batch)))
    return [(record.step, record.prompt) for record in read(run.dir) if isinstance(record, Sample)]


def test_sample_logger_takes_the_first_of_every_so_many_validations(tmp_path):
    callback = SampleLogger(n=3, every=2, source="validation")
    assert validated(tmp_path, callback, 3) == [(1, "a"), (1, "b"), (1, "c"), (3, "a"), (3, "b"), (3, "c")]


def test_sample_logger_after_a_resume_continues_counting_validations(tmp_path):
    callback = SampleLogger(n=1, every=2, source="validation")
    callback.load_state_dict({"validations": 1})
    assert validated(tmp_path, callback, 2) == [(2, "a")]


def test_sample_logger_that_finds_nothing_says_so_at_the_end(caplog):
    callback = SampleLogger(source="validation")
    with hl.run(root=None, callbacks=[callback], strict=True, summary=False) as run, run.validate() as val:
        for _ in val.batches([1, 2]):
            pass
    assert [record.getMessage() for record in caplog.records] == [
        "sample_logger found no samples in the validation. Pass make= to extract them."
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"n": 0}, "n=0"), ({"every": 0}, "every=0"), ({"source": "eval"}, "source='eval'"), ({"make": 1}, "make=1")],
)
def test_sample_logger_bad_arguments_are_errors(arguments, message):
    with pytest.raises(hl.OptionError, match=message):
        SampleLogger(**arguments)
