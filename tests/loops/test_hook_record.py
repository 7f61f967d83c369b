"""The recorded facts of subscribers: their order, and the cost of each at the end."""

from pathlib import Path

import pytest

import hookline as hl
from hookline._record.recorder import Recorder
from hookline._record.records import BOOKKEEPING, Event
from hookline.integrations.host_loop import HostLoop
from hookline.loops.recording import AT_ONCE, CHANGE_SECONDS, MOST_COSTS, PLAN_CHARACTERS, HookRecord


class Busy(hl.Callback):
    def on_train_start(self, loop):
        pass

    def on_step_end(self, loop, step_idx, batch, metrics):
        pass


class Broken(hl.Callback):
    def on_step_end(self, loop, step_idx, batch, metrics):
        raise ValueError("it broke")


def reported(run_dir, name):
    return [record for record in hl.read(run_dir) if isinstance(record, Event) and record.name == name]


def costs_of(run_dir):
    (event,) = reported(run_dir, "hooks_cost")
    return {cost["name"]: cost for cost in event.data["costs"]}


def orders_of(run_dir):
    return [event.data["moments"] for event in reported(run_dir, "hooks_plan")]


def train(run, how):
    for step in run.steps(3):
        run.log(loss=float(step))
        if how == "stopped":
            run.request_stop("enough")
        if how == "failed":
            raise RuntimeError("out of memory")


@pytest.mark.parametrize(("how", "calls"), [("finished", 4), ("stopped", 2), ("failed", 1)])
def test_costs_are_recorded_once_however_a_short_run_ends(how, calls):
    run = hl.run(callbacks=[Busy()], summary=False)
    try:
        with run:
            train(run, how)
    except RuntimeError:
        pass
    assert costs_of(run.dir)["busy"]["calls"] == calls
    kinds = [type(record).__name__ for record in hl.read(run.dir)]
    assert (kinds.count("Status"), kinds[-1]) == (2, "Status")
    assert list(hl.read(run.dir))[-1].status == how


def test_costs_of_the_end_are_those_of_the_collection():
    with hl.run(callbacks=[Busy(), Broken()], summary=False) as run:
        train(run, "finished")
    expected = run.callbacks.costs().by_name()
    recorded = costs_of(run.dir)
    keys = ("calls", "total_seconds", "mean_seconds", "p95_seconds", "max_seconds", "errors", "disabled")
    for name, cost in expected.items():
        assert [recorded[name][key] for key in keys] == [getattr(cost, key) for key in keys]
    assert (recorded["broken"]["errors"], recorded["broken"]["disabled"]) == (3, True)
    assert reported(run.dir, "hooks_cost")[0].data["seconds"] > 0


def test_costs_have_what_background_subscribers_did_until_the_end():
    with hl.run(callbacks=[hl.on("step_end", lambda loop: None, name="later", background=True)], summary=False) as run:
        train(run, "finished")
    assert costs_of(run.dir)["later"]["calls"] == 3


def test_nothing_is_recorded_of_subscribers_where_there_are_none():
    with hl.run(summary=False) as run:
        train(run, "finished")
    assert [record.name for record in hl.read(run.dir) if isinstance(record, Event)] == []


def test_rows_and_metrics_of_a_run_have_nothing_of_it():
    with hl.run(callbacks=[Busy()], summary=False) as run:
        train(run, "finished")
    assert [row.metrics for row in run.history] == [{"loss": 0.0}, {"loss": 1.0}, {"loss": 2.0}]
    assert dict(run.metrics) == {"loss": 2.0}


def test_order_is_recorded_at_the_start_for_the_moments_with_listeners():
    first = hl.on("step_end", lambda loop: None, name="first", priority=100)
    with hl.run(callbacks=[Busy(), hl.CallbackCollection([first], name="group")], summary=False) as run:
        run.callbacks.move_to_front("group")
        train(run, "finished")
    assert orders_of(run.dir) == [{"on_train_start": ["busy"], "on_step_end": ["group/first", "busy"]}]
    assert reported(run.dir, "hooks_plan")[0].step == 0


def test_order_is_recorded_again_when_subscribers_come_go_move_and_are_disabled():
    group = hl.CallbackCollection([], name="group")
    with hl.run(callbacks=[Busy(), group], summary=False) as run:
        for step in run.steps(5):
            if step == 0:
                group.add(hl.on("step_end", lambda loop: None, name="inner"))
            elif step == 1:
                run.callbacks.add(Broken())
            elif step == 4:
                run.callbacks.move_to_front("group")
                run.callbacks.remove("busy")
    found = [(event.step, event.data["moments"].get("on_step_end")) for event in reported(run.dir, "hooks_plan")]
    assert found == [
        (0, ["busy"]),
        (0, ["busy", "group/inner"]),
        (1, ["busy", "group/inner", "broken"]),
        (4, ["busy", "group/inner"]),
        (4, ["group/inner", "busy"]),
        (4, ["group/inner"]),
    ]


def test_order_that_changes_all_the_time_is_recorded_at_a_low_rate_and_at_the_end(tmp_path):
    now = 0.0
    callbacks, recorder = hl.CallbackCollection([Busy()]), Recorder(tmp_path)
    record = HookRecord(recorder, lambda: 7, clock=lambda: now)
    record.follow(callbacks)
    record.open()
    for number in range(50):
        callbacks.add(hl.on("step_end", lambda loop: None, name=f"n{number}"))
    assert len(reported(tmp_path, "hooks_plan")) == AT_ONCE
    now = CHANGE_SECONDS
    callbacks.add(hl.on("step_end", lambda loop: None, name="in_time"))
    callbacks.add(hl.on("step_end", lambda loop: None, name="too_soon"))
    assert orders_of(tmp_path)[-1]["on_step_end"][-1] == "in_time"
    record.close(callbacks)
    callbacks.add(hl.on("step_end", lambda loop: None, name="after"))
    recorder.close()
    assert len(orders_of(tmp_path)) == AT_ONCE + 2
    assert orders_of(tmp_path)[-1]["on_step_end"][-1] == "too_soon"


def test_record_of_very_many_subscribers_is_bounded_and_counts_what_is_left_out(tmp_path):
    many = [hl.on("step_end", lambda loop: None, name=f"{number:04d}" + "x" * 196) for number in range(MOST_COSTS + 7)]
    recorder = Recorder(tmp_path)
    record, callbacks = HookRecord(recorder, lambda: 0), hl.CallbackCollection(many)
    record.follow(callbacks)
    record.open()
    record.close(callbacks)
    recorder.close()
    (order,), (costs,) = reported(tmp_path, "hooks_plan"), reported(tmp_path, "hooks_cost")
    kept = order.data["moments"]["on_step_end"]
    assert PLAN_CHARACTERS - 400 < sum(map(len, kept)) <= PLAN_CHARACTERS
    assert len(kept) + order.data["left_out"] == len(many)
    assert (len(costs.data["costs"]), costs.data["left_out"]) == (MOST_COSTS, 7)


def test_collection_that_two_runs_share_in_turn_is_recorded_in_both():
    callbacks = hl.CallbackCollection([Busy()])
    runs = []
    for _ in range(2):
        with hl.run(callbacks=callbacks, summary=False) as run:
            train(run, "finished")
        runs.append(run.dir)
    assert [orders_of(each) for each in runs] == [[{"on_train_start": ["busy"], "on_step_end": ["busy"]}]] * 2
    assert ["busy" in costs_of(each) for each in runs] == [True, True]
    assert callbacks.on_change is None


def test_host_that_trains_or_only_validates_has_both_in_the_record():
    found = []
    for trains in (True, False):
        loop = HostLoop("hosted", native=None, callbacks=[hl.on("eval", lambda loop: None, name="e")], summary=False)
        loop.begin(trains=trains)
        loop.train_start() if trains else loop.start()
        loop.validation_start()
        loop.validation_end("val", {"val/loss": 1.0})
        loop.train_end()
        found.append((orders_of(loop.dir), costs_of(loop.dir)["e"]["calls"]))
    assert found == [([{"on_eval": ["e"]}], 1)] * 2


def test_each_run_of_an_experiment_has_both_in_the_record(tmp_path):
    def train_arm(ctx, run):
        train(run, "finished")

    hl.Experiment("sweep", hl.grid(lr=[0.1, 0.2]), train=train_arm, callbacks=[Busy()], output_dir=tmp_path / "p").run()
    directories = [info.directory for info in hl.runs(tmp_path)]
    assert [costs_of(each)["busy"]["calls"] for each in directories] == [4, 4]
    orders = [[order["on_step_end"] for order in orders_of(each)] for each in directories]
    assert orders == [[["busy", "progress_reports"]]] * 2


def test_trainer_has_both_in_the_record():
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    data = torch.utils.data.TensorDataset(torch.ones(4, 3), torch.ones(4, 1))
    config = hl.TrainerConfig(device="cpu", batch_size=2, epochs=1, summary=False)
    trainer = hl.Trainer(
        torch.nn.Linear(3, 1), data, config=config, loss=torch.nn.functional.mse_loss, callbacks=[Busy()]
    )
    trainer.fit()
    assert costs_of(trainer.dir)["busy"]["calls"] == 3
    assert orders_of(trainer.dir) == [{"on_train_start": ["busy"], "on_step_end": ["busy"]}]


def test_resumed_run_has_the_costs_of_each_session():
    for session in range(2):
        with hl.run("again", callbacks=[Busy()], resume="auto", summary=False) as run:
            train(run, "stopped")
        assert len(reported(run.dir, "hooks_cost")) == session + 1
        assert len(orders_of(run.dir)) == session + 1


def test_sinks_that_tell_people_leave_it_out(capsys):
    with hl.run(callbacks=[Busy()], sinks=["console", {"status": {"path": "status.json"}}], summary=False) as run:
        train(run, "finished")
    shown = capsys.readouterr()
    lines = (shown.out + shown.err).splitlines()
    lines += Path("status.json").read_text().splitlines()
    assert len([line for line in lines if "finished" in line]) == 2
    assert [line for line in lines for name in BOOKKEEPING if name in line] == []
