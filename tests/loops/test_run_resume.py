"""A resumed bare loop runs its remaining batches: each once, in the right calls and epochs."""

import contextlib
import itertools
import json
import os
import tempfile
from pathlib import Path

import pytest

import hookline as hl


class Broken(Exception):
    """What ends a run in these tests without an orderly end."""


class Saves(hl.Callback):
    """Saves a checkpoint after each step, and notes its moments."""

    def __init__(self, root):
        self.root, self.received = root, []

    def on_train_start(self, loop):
        self.received.append("start")

    def on_checkpoint_load(self, loop, row):
        self.received.append("load")

    def on_train_epoch_start(self, loop):
        self.received.append(("epoch starts", loop.epoch))

    def on_train_batch_start(self, loop, batch, batch_idx):
        self.received.append((loop.step, loop.epoch, batch, batch_idx))

    def on_log(self, loop, step, metrics):
        loop.save_checkpoint(self.root / f"{step}")
        self.received.append(f"saved {step}")

    def on_train_epoch_end(self, loop):
        self.received.append(("epoch ends", loop.epoch))

    def on_train_end(self, loop, artifacts):
        self.received.append("end")


def run_in(root, *callbacks, **options):
    files = {"save": lambda path: None, "load": lambda path: None}
    return hl.run("x", root=root, callbacks=callbacks, strict=True, summary=False, **files, **options)


def one_call(run):
    list(run.steps("abc"))


def one_call_with_epochs(run):
    list(run.steps("abc", epochs=3))


def a_call_an_epoch(run):
    for _ in range(3):
        list(run.steps("abc"))


def inside_epochs(run):
    for _ in run.epochs(3):
        list(run.steps("ab"))


def twice_in_an_epoch(run):
    for _ in run.epochs(2):
        list(run.steps("ab"))
        list(run.steps("xyz"))


def warmup_and_main(run):
    list(run.steps("ab"))
    list(run.steps("xyz", epochs=2))


def epochs_and_epochs(run):
    for count in (2, 3):
        for _ in run.epochs(count):
            list(run.steps("ab"))


def a_break(run):
    for batch in run.steps("abcd", epochs=2):
        if run.epoch == 1 and batch == "c":
            break
    list(run.steps("xy"))


def a_break_inside_epochs(run):
    for _ in run.epochs(3):
        for batch in run.steps("abcd"):
            if batch == "b":
                break


def a_break_of_an_iterator_that_is_kept(run):
    for _ in run.epochs(3):
        kept = run.steps("abcd")  # as a progress bar around it is
        for batch in kept:
            if batch == "b":
                break


def a_break_out_of_epochs(run):
    for epoch in run.epochs(5):
        list(run.steps("ab"))
        if epoch == 1:
            break
    list(run.steps("xy"))


def totals(run):
    list(run.steps(itertools.cycle("ab"), total=3))
    list(run.steps(itertools.cycle("xyz"), total=7))


PROGRAMS = [
    *(one_call, one_call_with_epochs, a_call_an_epoch, inside_epochs, twice_in_an_epoch, warmup_and_main),
    *(epochs_and_epochs, a_break_out_of_epochs, totals),
]
BREAKS = [a_break, a_break_inside_epochs, a_break_of_an_iterator_that_is_kept]


def received_in(root, program, *callbacks, resumed=None):
    """The moments of a run that saves its checkpoints below a directory, and its number of steps."""
    saves = Saves(root)
    with run_in(None, saves, *callbacks) as run:
        if resumed is not None:
            run.load_checkpoint(resumed)
        program(run)
        run.save_checkpoint(root / "end")
    return saves.received, run.step


def steps_of(received):
    return [reported for reported in received if isinstance(reported, tuple) and len(reported) == 4]


@pytest.mark.parametrize("program", PROGRAMS + BREAKS)
def test_resume_of_a_bare_loop_at_any_step_completes_it_with_the_same_moments(tmp_path, program):
    whole, steps = received_in(tmp_path / "0", program)
    for step in range(1, steps + 1):
        saved = tmp_path / f"{step - 1}" / f"{step}"  # by the run that was resumed a step before
        received, done = received_in(tmp_path / f"{step}", program, resumed=saved)
        left = whole[whole.index(f"saved {step}") + 1 :]
        epoch = next(reported for reported in left if reported[0] == "epoch ends")[1]
        assert (received, done) == (["start", "load", ("epoch starts", epoch), *left], steps), f"at {step}"


@pytest.mark.parametrize("program", PROGRAMS)
def test_resume_of_a_bare_loop_that_was_stopped_at_any_step_completes_it(tmp_path, program):
    whole, steps = received_in(tmp_path / "whole", program)
    for step in range(1, steps):
        stop = hl.on("step_start", lambda loop: loop.request_stop("enough"), every=step)
        first, done = received_in(tmp_path / f"{step}", program, stop)
        second, _ = received_in(tmp_path / "rest", program, resumed=tmp_path / f"{step}" / "end")
        assert (done, steps_of(first + second)) == (step, steps_of(whole))


def test_resume_of_a_program_that_failed_in_a_later_call_does_each_step_once(tmp_path):
    seen = []
    for fails_at, resume in ((5, None), (None, "last")):
        save = hl.callbacks.CheckpointCallback(every_n_steps=1)
        with contextlib.suppress(Broken), run_in(tmp_path, save, resume=resume) as run:
            for _ in range(3):
                for batch in run.steps("abc"):
                    if run.step == fails_at:
                        raise Broken
                    seen.append((run.step, batch))
    assert seen == list(enumerate("abcabcabc"))


def break_at(batch, run, *calls):
    """A loop that is left at a batch, with what came of each."""
    seen = []
    for given in run.steps("abcd", epochs=2):
        seen.append((run.epoch, given))
        for call in calls if given == batch else ():
            call()
        if run.stop_requested or (given == batch and not calls):
            break
    return seen


def test_resume_of_a_loop_that_was_left_with_a_break_gives_nothing_and_says_so(tmp_path, caplog):
    with run_in(tmp_path, "checkpoint") as run:
        assert break_at("b", run) == [(0, "a"), (0, "b")]
    with run_in(tmp_path, "checkpoint", resume="last") as run:
        assert break_at("b", run) == []
    assert "the loop that was left with a break at step 2 is complete" in caplog.text
    assert "call run.request_stop()" in caplog.text


def test_resume_of_a_loop_that_was_left_because_of_a_stop_continues(tmp_path):
    with run_in(tmp_path, "checkpoint") as run:
        assert break_at("b", run, lambda: run.request_stop("enough")) == [(0, "a"), (0, "b")]
    with run_in(tmp_path, "checkpoint", resume="last") as run:
        assert break_at("z", run) == [(0, "c"), (0, "d"), *((1, batch) for batch in "abcd")]


def leave_epochs_at_a_stop(run):
    seen = []
    for epoch in run.epochs(2):
        for batch in run.steps("abc"):
            seen.append((epoch, batch))
            if run.stop_requested:
                break
    return seen


def test_resume_inside_epochs_that_were_left_because_of_a_stop_continues_in_the_epoch(tmp_path):
    stop = hl.on("step_start", lambda loop: loop.request_stop("enough"), every=2)
    with run_in(tmp_path, "checkpoint", stop) as run:
        assert leave_epochs_at_a_stop(run) == [(0, "a"), (0, "b")]
    with run_in(tmp_path, "checkpoint", resume="last") as run:
        assert leave_epochs_at_a_stop(run) == [(0, "c"), (1, "a"), (1, "b"), (1, "c")]


@pytest.mark.parametrize("error", [Broken, SystemExit])
def test_resume_of_a_loop_that_the_program_ended_in_continues(tmp_path, error):
    last = hl.on("exception", lambda loop: (loop.save_checkpoint(), None)[1])
    with pytest.raises(error), run_in(tmp_path, "checkpoint", last) as run:
        for _ in run.steps("abcd"):
            if run.step == 2:
                raise error
    with run_in(tmp_path, resume="last") as run:
        assert list(run.steps("abcd")) == (["c", "d"] if error is Broken else ["d"])


class Counted(list):
    """Batches that count how often they are iterated over."""

    opened = 0

    def __iter__(self):
        self.opened += 1
        return super().__iter__()


def test_resume_does_not_draw_from_the_data_of_complete_calls(tmp_path):
    with run_in(tmp_path) as run:
        list(run.steps("ab"))
        run.save_checkpoint()  # nobody called steps again yet
    first = Counted("ab")
    with run_in(tmp_path, resume="last") as run:
        assert [list(run.steps(first)), list(run.steps("cd"))] == [[], ["c", "d"]]
        run.save_checkpoint()
    second = Counted("cd")
    with run_in(tmp_path, resume="last") as run:
        assert [list(run.steps(first)), list(run.steps(second)), list(run.steps("e"))] == [[], [], ["e"]]
    assert (first.opened, second.opened) == (0, 0)


def test_resume_with_more_data_or_epochs_continues_with_them(tmp_path):
    with run_in(tmp_path, "checkpoint") as run:
        list(run.steps("ab"))
    saved = run.dir / "checkpoints" / "step-00000002"
    for options, left in (({"batches": "abcd"}, ["c", "d"]), ({"batches": "ab", "epochs": 2}, ["a", "b"])):
        with run_in(tmp_path, resume=saved) as run:
            assert (list(run.steps(**options)), run.num_steps) == (left, 4)


def test_resume_with_fewer_epochs_than_are_done_gives_nothing(tmp_path):
    with run_in(tmp_path) as run:
        for _ in run.steps("abc", epochs=3):
            if run.step == 6:
                run.save_checkpoint()
    for give in (lambda run: run.steps("abc", epochs=2), lambda run: run.epochs(2)):
        with run_in(tmp_path, resume=run.checkpoints[0].path) as again:
            assert (list(give(again)), again.step) == ([], 7)


def test_resume_with_data_that_got_shorter_leaves_the_next_epoch_whole(tmp_path):
    with run_in(tmp_path) as run:
        for _ in run.steps("abcd", epochs=2):
            if run.step == 2:
                run.save_checkpoint()
    with run_in(tmp_path, resume="last") as run:
        assert [(run.epoch, batch) for batch in run.steps("xy", epochs=2)] == [(1, "x"), (1, "y")]


def test_resume_from_a_checkpoint_without_calls_continues_in_the_first(tmp_path):
    with run_in(tmp_path) as run:
        list(run.steps("ab"))
        for _ in run.steps("cd"):
            if run.step == 2:
                run.save_checkpoint()
    (saved,) = run.checkpoints
    state = json.loads((saved.path / "state.json").read_text())
    old = {"calls_done", "passes_done", "call_left", "pass_left", "epoch_open", "epoch_complete"}
    assert old < set(state)
    size = (saved.path / "state.json").stat().st_size
    text = json.dumps({key: value for key, value in state.items() if key not in old}).ljust(size)
    (saved.path / "state.json").write_text(text)
    manifest = json.loads((saved.path / "manifest.json").read_text())
    del manifest["sha256"]  # which checkpoints that old do not have
    (saved.path / "manifest.json").write_text(json.dumps(manifest))
    with run_in(None) as run:
        run.load_checkpoint(saved.path)
        assert [list(run.steps("ab")), list(run.steps("cd"))] == [["b"], ["c", "d"]]


def test_resume_that_is_stopped_before_its_first_step_keeps_the_place(tmp_path):
    received_in(tmp_path, a_call_an_epoch)
    stop = hl.on("train_start", lambda loop: loop.request_stop("enough"))
    assert received_in(tmp_path / "stopped", a_call_an_epoch, stop, resumed=tmp_path / "5")[1] == 5
    received, _ = received_in(tmp_path / "rest", a_call_an_epoch, resumed=tmp_path / "stopped" / "end")
    assert [reported[0::2] for reported in steps_of(received)] == [(5, "c"), (6, "a"), (7, "b"), (8, "c")]


def test_resume_inside_epochs_whose_end_was_fired_does_not_repeat_the_body_of_the_epoch(tmp_path):
    bodies = []
    for fails, resume in ((True, None), (False, "last")):
        with contextlib.suppress(Broken), run_in(tmp_path, "checkpoint", resume=resume) as run:
            for epoch in run.epochs(3):
                for _ in run.steps("ab"):
                    if fails and epoch == 2:
                        raise Broken
                bodies.append(epoch)
    assert bodies == [0, 1, 2]


def test_resume_of_a_call_that_a_break_left_ends_its_epoch_before_the_program_continues(tmp_path):
    def program(run):
        for batch in run.steps("abcd"):
            if batch == "b":
                break
        received.append("after the call")

    received = []
    received_in(tmp_path, program)
    with run_in(None, hl.on("train_epoch_end", lambda loop: received.append("epoch ends"))) as run:
        run.load_checkpoint(tmp_path / "2")
        program(run)
    assert received == ["after the call", "epoch ends", "after the call"]


def test_checkpoint_loaded_again_in_the_run_continues_there_in_the_next_call(tmp_path):
    seen = []
    with run_in(tmp_path) as run:
        list(run.steps("ab"))
        for batch in run.steps("cdef"):
            if batch == "d":
                run.save_checkpoint()
        run.load_checkpoint(run.checkpoints[0].path)
        seen += run.steps("cdef")
    assert (seen, run.step) == (["e", "f"], 6)


def test_run_steps_twice_in_an_epoch_are_both_inside_of_it(tmp_path):
    received, _ = received_in(tmp_path, twice_in_an_epoch)
    reported = [one[0] if isinstance(one[0], str) else one[2] for one in received if isinstance(one, tuple)]
    assert reported == ["epoch starts", *"abxyz", "epoch ends"] * 2


def resumed_after_two(tmp_path, train):
    """Train two steps with a checkpoint, and then from there."""
    options = {"name": "counted", "root": tmp_path, "summary": False}
    with hl.run(**options) as run:
        for i in run.steps(4):
            if i == 1:
                run.save_checkpoint()
                run.request_stop("for now")
    with hl.run(**options, resume="last", save=lambda path: None, load=lambda path: None) as run:
        return train(run)


@pytest.mark.parametrize(("first", "seen", "warns"), [(0, [0, 1], True), ("run.step", [2, 3], False)])
def test_resumed_loop_that_is_enumerated_from_the_beginning_is_warned_about(tmp_path, caplog, first, seen, warns):
    def train(run):
        return [i for i, _ in enumerate(run.steps(4), start=run.step if first == "run.step" else first)]

    assert resumed_after_two(tmp_path, train) == seen
    said = [record.getMessage() for record in caplog.records if "counts from 0 again" in record.getMessage()]
    assert bool(said) == warns


@pytest.mark.parametrize("own", [True, False])
def test_resumed_loop_with_an_iterator_of_its_own_is_warned_about(tmp_path, caplog, own):
    def train_with_iterator(run):
        data = iter("abcd")
        return [next(data) for _ in run.steps(4)]

    def train_with_steps(run):
        return list(run.steps("abcd"))

    found = resumed_after_two(tmp_path, train_with_iterator if own else train_with_steps)
    said = [record.getMessage() for record in caplog.records if "iterators of its own (data)" in record.getMessage()]
    assert (found, len(said)) == ((["a", "b"], 1) if own else (["c", "d"], 0))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_resume_of_another_users_run_is_an_error_that_says_so():
    with tempfile.TemporaryDirectory() as root:  # pytest's own are closed to other users
        Path(root).chmod(0o755)
        with hl.run("theirs", root=root, summary=False) as run:
            run.log(loss=1.0, step=1)
        with hl.run("theirs", root=root, resume=run.dir, summary=False):
            pass  # what a resume needs is imported now: another user may not read it
        os.seteuid(65534)
        try:
            again = hl.run("theirs", root=root, resume=run.dir, summary=False)
            with pytest.raises(hl.ConfigError, match="cannot be written: it is another user's run"), again:
                pass
        finally:
            os.seteuid(0)
