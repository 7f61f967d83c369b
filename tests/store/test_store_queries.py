"""What the store answers: metrics, samples, events, costs, log lines, aggregates, lines of charts, SQL."""

import json
import math
import time
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from recorded_runs import append, ended, finished_run, make_run, row
from waiting import wait_until

import hookline as hl
from hookline._record.records import Event, LogLine, Metrics, Rewards, Sample
from hookline.store import QueryError, QueryTimeoutError, runs
from hookline.store.query import execute
from hookline.store.series import downsampled
from hookline.store.store import open_store

FORBIDDEN = [
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_parquet('https://example.com/a.parquet')",
    "SELECT * FROM parquet_metadata('/etc/passwd')",
    "SELECT * FROM enable_logging(storage='file', storage_config={'path': 'stolen'})",
    "SELECT * FROM query('DROP TABLE live_metrics')",
    "SELECT * FROM duckdb_secrets()",
    "COPY runs TO 'stolen.csv'",
    "COPY (SELECT 1) TO 'stolen.csv'",
    "ATTACH 'stolen.duckdb'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "SET enable_external_access = true",
    "SET threads = 1",
    "SELECT 1; SELECT 2",
    "CREATE TABLE stolen AS SELECT 1",
    "INSERT INTO live_metrics SELECT * FROM live_metrics",
    "DELETE FROM states",
    "DROP TABLE states",
    "UPDATE states SET run = 'x'",
    "CHECKPOINT",
    "EXPORT DATABASE 'stolen'",
    "CALL pragma_version()",
    "BEGIN",
    "EXPLAIN SELECT 1",
    "",
    "nonsense",
    "SELECT nope FROM metrics",
]


def experiment_run(root, arm, repeat, values, **facts):
    experiment = {"name": "sweep", "arm": arm, "group": arm, "repeat": repeat}
    directory = make_run(root, f"{arm}-r{repeat}", "sweep", experiment=experiment, **facts)
    append(directory, *[row(step, loss=value) for step, value in values.items()], ended())
    return directory


def sampled_run(root):
    directory = make_run(root)
    samples = [
        Sample(step=step, time=float(step), prompt=f"{step} + 1", completion=text, lesson=lesson, group="g", **more)
        for step, text, lesson, more in (
            (1, "It is Two", "add", {"rewards": {"exact": 1.0, "format": 0.5}, "total": 1.5, "advantage": 1.0}),
            (2, "50% (of it's) _x_", "add", {"rewards": {"exact": 0.0, "format": 0.5}, "advantage": -1.0}),
            (3, "3 * 1", "multiply", {"rewards": {"exact": math.nan}, "total": 0.1}),
        )
    ]
    append(directory, *samples, ended(3))
    return runs(root)


def steps(result):
    return [each["step"] for each in result]


def test_metrics_by_names_axis_and_steps(tmp_path):
    directory = make_run(tmp_path)
    append(directory, *[row(step, loss=float(step), **{"val/acc": 0.5, "val_acc": 1.0}) for step in range(5)])
    append(directory, row(3, "eval", loss=9.0), ended())
    found = runs(tmp_path)
    assert steps(found.metrics("loss", axis="train", steps=(1, 3))) == [1, 2, 3]
    assert {each["name"] for each in found.metrics("val_*")} == {"val_acc"}
    assert {each["name"] for each in found.metrics(["val/*", "loss"], steps=(4, None))} == {"val/acc", "loss"}
    assert found.metrics([]).rows() == []
    assert [(each["name"], each["axis"], each["points"]) for each in found.metric_names()] == [
        ("loss", "eval", 1),
        ("loss", "train", 5),
        ("val/acc", "train", 5),
        ("val_acc", "train", 5),
    ]


def test_results_are_the_same_as_rows_columns_pandas_polars_and_arrow(tmp_path):
    finished_run(tmp_path)
    result = runs(tmp_path).metrics("loss")
    values = [3.0, 2.0, 1.0]
    assert [each["value"] for each in result.rows()] == result.columns()["value"] == values
    assert result.pandas()["value"].tolist() == values
    assert result.polars()["value"].to_list() == values
    assert result.arrow()["value"].to_pylist() == values
    assert result.total() == 3


def test_result_as_something_that_is_not_installed_says_what_to_install(tmp_path, monkeypatch):
    finished_run(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(hl.MissingExtraError, match="pip install polars"):
        runs(tmp_path).metrics().polars()


def test_store_without_duckdb_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "duckdb", None)
    with pytest.raises(hl.MissingExtraError, match=r"hookline\[ui\]"):
        runs(tmp_path)


def test_samples_by_lesson_reward_text_and_steps(tmp_path):
    found = sampled_run(tmp_path)
    assert steps(found.samples(lesson="add")) == [1, 2]
    assert steps(found.samples(min_reward=0.5)) == [1, 2]  # the second has no total: the sum counts
    assert steps(found.samples(max_reward=0.5)) == [2, 3]
    assert steps(found.samples(reward="exact", max_reward=0.5)) == [2]
    assert steps(found.samples(steps=(2, None), group="g", axis="train")) == [2, 3]
    assert [
        steps(found.samples(text=text)) for text in ("is two", "50% (", "it's", "_X_", "* 1", "3 +", "5%0", "é")
    ] == [
        [1],
        [2],
        [2],
        [2],
        [3],
        [3],
        [],
        [],
    ]


def test_samples_are_ordered_and_paged_and_counted(tmp_path):
    found = sampled_run(tmp_path)
    assert steps(found.samples(order="-reward")) == [1, 2, 3]
    assert steps(found.samples(order="advantage")) == [2, 1, 3]
    page = found.samples(order="-step", limit=1, offset=1)
    assert (steps(page), page.total()) == ([2], 3)
    with pytest.raises(hl.OptionError, match="order='rewards'.*reward"):
        found.samples(order="rewards")
    with pytest.raises(hl.OptionError, match="limit=-1"):
        found.samples(limit=-1)


def test_samples_with_a_reward_that_is_nan_come_last_and_match_no_range(tmp_path):
    directory = make_run(tmp_path, "odd")
    given = {1: math.nan, 2: 0.5, 3: None, 4: math.inf, 5: 2.0}
    shown = [Sample(time=1.0, step=step, completion="x", total=value) for step, value in given.items()]
    named = Sample(time=1.0, step=6, completion="x", rewards={"exact": math.nan})
    append(directory, *shown, named, ended())
    found = runs(tmp_path)
    assert steps(found.samples(order="-reward"))[:3] == [4, 5, 2]
    assert steps(found.samples(order="reward"))[:3] == [2, 5, 4]
    assert steps(found.samples(min_reward=1.0)) == [4, 5]
    assert steps(found.samples(min_reward=-1.0, max_reward=3.0)) == [2, 5]
    assert steps(found.samples(reward="exact", min_reward=-1.0)) == []


def test_sample_keeps_what_was_recorded(tmp_path):
    [first] = sampled_run(tmp_path).samples(limit=1).rows()
    assert (first["rewards"], first["total"], first["reward"]) == ({"exact": 1.0, "format": 0.5}, 1.5, 1.5)
    assert (first["prompt"], first["completion"], first["expected"], first["lesson"]) == (
        "1 + 1",
        "It is Two",
        None,
        "add",
    )


def test_events_statuses_logs_and_rewards_are_found(tmp_path):
    directory = make_run(tmp_path)
    append(
        directory,
        Event(time=1.0, name="checkpoint", step=3, data={"path": "a", "loss": math.nan}),
        LogLine(time=2.0, level="WARNING", logger="hookline", message="Slow (very)", step=1),
        LogLine(time=3.0, level="INFO", logger="other", message="fine"),
        Rewards(time=4.0, step=2, name="exact", values=[1.0, None], samples=["a"]),
        ended(3),
    )
    found = runs(tmp_path)
    [event] = found.events("check*", kind="event", steps=(3, 3))
    assert (event["step"], json.loads(event["data"])) == (3, {"path": "a", "loss": "NaN"})
    assert [each["name"] for each in found.events(kind="status")] == ["finished"]
    assert [each["message"] for each in found.logs(text="slow (", level="WARNING")] == ["Slow (very)"]
    assert [each["step"] for each in found.logs(logger="other", limit=5)] == [None]
    assert [(each["position"], each["value"], each["sample"]) for each in found.rewards("exact")] == [
        (0, 1.0, "a"),
        (1, None, None),
    ]


def test_hooks_show_the_last_report_of_each_subscriber_or_all(tmp_path):
    directory = make_run(tmp_path)
    for step, calls in ((10, 10), (20, 20)):
        cost = hl.Cost("eval/Bench", calls, 0.5 * calls, 0.5, 0.6, 0.7, errors=1)
        append(directory, Metrics(step=step, time=float(step), values=cost.as_metrics()))
    append(
        directory, Metrics(step=5, time=5.0, values=hl.Cost("Log", 3, 0.1, 0.1, 0.1, 0.1).as_metrics()), name="rank1"
    )
    append(directory, ended())
    found = runs(tmp_path)
    latest = {(each["writer"], each["name"]): each for each in found.hooks()}
    bench = latest["main", "eval/Bench"]
    assert (bench["calls"], bench["total_ms"], bench["mean_ms"], bench["p95_ms"]) == (20, 10_000.0, 500.0, 600.0)
    assert (bench["max_ms"], bench["errors"], bench["step"]) == (700.0, 1, 20)
    assert latest["rank1", "Log"]["calls"] == 3
    assert [each["calls"] for each in found.hooks(history=True)] == [3, 10, 20]


def test_hooks_of_a_real_run_are_its_costs(tmp_path):
    class Busy(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            sum(range(100))

    with hl.run("busy", callbacks=[Busy()], summary=False) as run:
        for _ in run.steps(40):
            run.log(loss=1.0)
        run.log(run.callbacks.costs().as_metrics())
    cost, found = run.callbacks.costs()[0], runs("runs")
    (row,) = found.hooks()
    assert (row["name"], row["calls"], row["step"], row["disabled"]) == ("busy", 40, 40, False)
    times = ("total_ms", "mean_ms", "p95_ms", "max_ms")
    seconds = (cost.total_seconds, cost.mean_seconds, cost.p95_seconds, cost.max_seconds)
    assert [row[name] for name in times] == pytest.approx([1000 * each for each in seconds])
    assert 0 < row["share"] < 1
    assert [each["share"] is None for each in found.hooks(history=True)] == [True, False]
    assert found.sql("SELECT calls FROM hooks WHERE share IS NOT NULL").rows() == [{"calls": 40}]


def test_hook_errors_and_order_are_the_last_of_each_run(tmp_path):
    class Broken(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            raise ValueError(f"at {step_idx}")

    with hl.run("broken", callbacks=[Broken(), hl.on("log", lambda loop: None, name="n")], summary=False) as run:
        for _ in run.steps(4):
            run.log(loss=1.0)
    (failed,), (order,) = runs("runs").hook_errors(), runs("runs").hook_order()
    names = ("writer", "name", "errors", "disabled", "error", "moment", "step")
    assert [failed[name] for name in names] == ["main", "broken", 3, True, "ValueError: at 2", "on_step_end", 3]
    assert json.loads(order["moments"]) == {"on_log": ["n"]}
    assert (order["left_out"], order["versions"], order["step"]) == (0, 2, 3)


def test_events_of_others_that_look_like_costs_and_orders_are_passed_over(tmp_path):
    directory = make_run(tmp_path)
    odd = ({}, {"costs": 3}, {"costs": [1, {"name": None}]}, {"costs": [{"name": "x", "calls": "many"}]})
    append(directory, *[Event(name="hooks_cost", data=data) for data in odd])
    append(directory, Event(name="hooks_plan", data={"moments": "none"}), Event(name="hook_error", data={}), ended())
    found = runs(tmp_path)
    assert [(row["name"], row["calls"], row["share"]) for row in found.hooks(history=True)] == [("x", None, None)]
    assert [row["moments"] for row in found.hook_order()] == ['"none"']
    assert found.hook_errors().rows() == []


@pytest.mark.parametrize("ddof", [0, 1])
def test_aggregate_over_repeats_of_unequal_lengths_and_steps_is_numpys(tmp_path, ddof):
    noise = np.random.default_rng(3)
    arms = {"fast": [range(1, 9), range(1, 5), range(2, 12, 2)], "slow": [range(3, 6)]}
    expected = {}
    for arm, repeats in arms.items():
        for repeat, at in enumerate(repeats):
            values = {step: float(noise.normal()) * 1e3 for step in at}
            experiment_run(tmp_path, arm, repeat, values)
            for step, value in values.items():
                expected.setdefault((arm, step), []).append(value)
    found = {(each["arm"], each["step"]): each for each in runs(tmp_path).aggregate("loss", ddof=ddof)}
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        each = found[key]
        assert (each["n"], each["min"], each["max"]) == (len(values), np.min(values), np.max(values))
        assert each["mean"] == pytest.approx(np.mean(values), rel=1e-12)
        if len(values) > ddof:
            assert each["std"] == pytest.approx(np.std(values, ddof=ddof), rel=1e-9, abs=1e-9)
        else:
            assert each["std"] is None


def test_aggregate_is_over_the_finite_values_and_counts_the_others(tmp_path):
    for repeat, values in enumerate(({1: 1.0, 2: math.nan}, {1: math.nan, 2: math.inf}, {1: 3.0, 2: -math.inf})):
        experiment_run(tmp_path, "a", repeat, values)
    some, none = runs(tmp_path).aggregate("loss").rows()
    names = ("mean", "std", "min", "max", "n", "not_finite")
    assert [some[name] for name in names] == [2.0, pytest.approx(math.sqrt(2)), 1.0, 3.0, 2, 1]
    assert [none[name] for name in names] == [None, None, None, None, 0, 3]


def test_aggregate_counts_a_run_once_and_groups_by_what_is_asked_for(tmp_path):
    experiment_run(tmp_path, "a", 0, {1: 1.0})
    directory = experiment_run(tmp_path, "b", 0, {1: 5.0})
    append(directory, row(1, loss=7.0, time=9.0))
    found = runs(tmp_path)
    [together] = found.aggregate("loss", by="experiment").rows()
    assert (together["experiment"], together["mean"], together["n"]) == ("sweep", 4.0, 2)
    assert [each["mean"] for each in found.aggregate("loss", by=("arm", "repeat"), steps=(1, 1))] == [1.0, 7.0]
    with pytest.raises(hl.OptionError, match="by='arms'.*'arm'"):
        found.aggregate("loss", by="arms")
    with pytest.raises(hl.OptionError, match="ddof=2"):
        found.aggregate("loss", ddof=2)


def test_series_keeps_every_peak_within_its_points(tmp_path):
    values = [0.0] * 5000
    values[1234], values[3456], values[-1] = 9.0, -9.0, 0.5
    finished_run(tmp_path, losses=values)
    [line] = runs(tmp_path).series("loss", max_points=100)
    assert (line.points, line.not_finite, len(line.x) <= 100) == (5000, 0, True)
    drawn = dict(zip(line.x, line.y, strict=True))
    assert (drawn[1235.0], drawn[3457.0], drawn[1.0], drawn[5000.0]) == (9.0, -9.0, 0.0, 0.5)
    assert line.x == sorted(line.x)


def test_series_leaves_out_what_is_not_finite_and_counts_it(tmp_path):
    finished_run(tmp_path, losses=[1.0, math.nan, 3.0, math.inf])
    [line] = runs(tmp_path).series("loss")
    assert (line.run, line.x, line.y, line.not_finite) == ("p/r0", [1.0, 3.0], [1.0, 3.0], 2)


def test_series_over_time_or_over_another_metric(tmp_path):
    directory = make_run(tmp_path)
    append(directory, *[row(step, time=100.0 + step, loss=-float(step), tokens=step * 10) for step in (1, 2, 3)])
    append(directory, row(2, "eval", loss=5.0), ended())
    found = runs(tmp_path)
    by_axis = {line.axis: line for line in found.series("loss", x="time")}
    assert (by_axis["train"].x, by_axis["eval"].y) == ([101.0, 102.0, 103.0], [5.0])
    [line] = found.series("loss", x="tokens", axis="train")
    assert (line.x, line.y) == ([10.0, 20.0, 30.0], [-1.0, -2.0, -3.0])
    assert found.series("nothing") == []
    with pytest.raises(hl.OptionError, match="max_points=3"):
        found.series("loss", max_points=3)


def test_thinning_keeps_the_extremes_of_any_line():
    noise = np.random.default_rng(0)
    for size, most in ((10, 10), (11, 10), (1000, 7), (1000, 4), (50, 49)):
        xs, ys = np.sort(noise.exponential(size=size)), noise.normal(size=size)
        kept = downsampled(xs, ys, most)
        assert len(kept) <= most
        assert {0, size - 1, int(ys.argmin()), int(ys.argmax())} <= set(kept.tolist())
    same = np.zeros(100)
    assert set(downsampled(same, same, 10).tolist()) <= set(range(100))


def test_sql_reads_all_tables_of_the_runs_that_were_chosen(tmp_path):
    experiment_run(tmp_path, "a", 0, {1: 1.0, 2: 2.0}, config={"lr": 0.5})
    experiment_run(tmp_path, "b", 0, {1: 3.0})
    found = runs(tmp_path)
    joined = (
        "SELECT arm, config->>'lr' AS lr, max(value) AS top FROM metrics JOIN runs ON id = run GROUP BY ALL ORDER BY 1;"
    )
    assert found.sql(joined).rows() == [{"arm": "a", "lr": "0.5", "top": 2.0}, {"arm": "b", "lr": None, "top": 3.0}]
    assert found.filter(arm="b").sql("FROM runs SELECT id").rows() == [{"id": "sweep/b-r0"}]
    assert found.sql("SELECT value FROM metrics WHERE value > ?", [1.5]).total() == 2
    limited = found.sql("SELECT value FROM metrics ORDER BY value -- the least", limit=1)
    assert (limited.rows(), limited.total()) == ([{"value": 1.0}], 3)
    for table in ("runs", "metrics", "samples", "rewards", "events", "hooks", "logs"):
        assert found.sql(f"DESCRIBE {table}").rows()


@pytest.mark.parametrize("query", FORBIDDEN)
def test_sql_that_is_no_plain_query_is_refused_and_changes_nothing(tmp_path, query):
    finished_run(tmp_path)
    found = runs(tmp_path)
    with pytest.raises(QueryError):
        found.sql(query).rows()
    assert list(tmp_path.glob("stolen*")) == []
    assert len(found.metrics().rows()) == 3


def test_sql_cannot_read_beside_the_index_by_going_up(tmp_path):
    finished_run(tmp_path)
    path = tmp_path / ".hookline" / ".." / "p" / "r0" / "run.json"
    with pytest.raises(QueryError, match="disabled"):
        runs(tmp_path).sql(f"SELECT * FROM read_text('{path}')").rows()


@pytest.mark.parametrize("name", ["tokens.json", "runs/../tokens.json", "audit.jsonl"])
def test_sql_cannot_read_what_a_server_keeps_beside_the_index(tmp_path, name):
    finished_run(tmp_path)
    found = runs(tmp_path)
    for kept in ("tokens.json", "audit.jsonl"):
        (tmp_path / ".hookline" / kept).write_text("{}")
    with pytest.raises(QueryError, match="disabled"):
        found.sql(f"SELECT * FROM read_text('{tmp_path / '.hookline'}/{name}')").rows()


def test_sql_that_takes_too_long_is_ended(tmp_path):
    finished_run(tmp_path)
    found = runs(tmp_path)
    endless = found.sql("SELECT count(*) FROM range(1000000000000)", timeout_seconds=0.1)
    with pytest.raises(QueryTimeoutError, match="longer than 0.1 s"):
        endless.rows()
    assert len(found.metrics().rows()) == 3
    with pytest.raises(hl.OptionError, match="timeout_seconds=0"):
        found.sql("SELECT 1", timeout_seconds=0)


def test_sql_whose_time_is_over_before_it_is_fetched_is_ended(tmp_path):
    finished_run(tmp_path)
    endless = execute(
        open_store(tmp_path), runs(tmp_path)[:], "SELECT count(*) FROM range(1000000000000)", timeout_seconds=0.1
    )
    with pytest.raises(QueryTimeoutError), endless as relation:
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() > begun + 0.2)  # an interrupt between two statements is lost
        relation.fetchall()


def test_sql_with_a_column_that_has_the_name_of_a_table_reads_only_what_it_selects_from(tmp_path):
    finished_run(tmp_path)
    found = hl.runs(tmp_path)
    [counted] = found.sql("SELECT count(*) AS samples, count(*) AS metrics FROM runs").rows()
    assert counted == {"samples": 1, "metrics": 1}
    assert found._store.index.state("p/r0").read is None
    [both] = found.sql("SELECT count(*) AS runs FROM metrics AS runs").rows()
    assert both == {"runs": 3}


def test_texts_that_look_like_sql_are_texts(tmp_path):
    found = sampled_run(tmp_path)
    for text in ("' OR 1=1 --", "a'); DROP TABLE runs; --", "\\", "%", "$1", "?"):
        assert found.samples(text=text).total() <= 1
        assert found.metrics(text).rows() == []
        assert found.samples(reward=text, min_reward=0.0).rows() == []


def test_sql_with_columns_of_one_name_keeps_all_of_them_in_every_form(tmp_path):
    finished_run(tmp_path, losses=[1.0], name="warm")
    query = "SELECT m.name, r.name, m.value, 7 AS name_1, 'x' AS NAME FROM metrics m JOIN runs r ON r.id = m.run"
    for result in (runs(tmp_path).sql(query), runs(tmp_path).sql(query, limit=5)):
        row = {"name": "loss", "name_1": "warm", "value": 1.0, "name_1_1": 7, "NAME_2": "x"}
        assert result.rows() == [row]
        assert result.columns() == {name: [value] for name, value in row.items()}
        assert result.pandas().to_dict("records") == result.polars().to_dicts() == result.arrow().to_pylist() == [row]


@pytest.mark.parametrize("end", ["; -- done", ";;", " -- a; b", ";\n/* ; */ -- c;", "; "])
def test_sql_with_comments_behind_its_end_is_run(tmp_path, end):
    finished_run(tmp_path, losses=[2.0, 1.0])
    query = f"SELECT ';é--' AS mark, count(*) /* ; */ AS n FROM metrics{end}"
    for limit in (None, 3):
        result = runs(tmp_path).sql(query, limit=limit)
        assert (result.rows(), result.total()) == ([{"mark": ";é--", "n": 2}], 1)


@pytest.mark.parametrize("query", ["SELECT 1; SELECT 2", "SELECT 1; -- done\nSELECT 2", "SELECT 1; DROP TABLE states"])
def test_sql_with_a_second_statement_is_refused(tmp_path, query):
    finished_run(tmp_path)
    with pytest.raises(QueryError, match="give one SELECT"):
        runs(tmp_path).sql(query)


def test_sql_with_points_in_time_gives_them_in_utc(tmp_path):
    append(make_run(tmp_path), row(1, time=90.5, loss=1.0), ended())
    query = 'SELECT to_timestamp(time) AS at, to_timestamp(NULL) AS at, [to_timestamp(time)] AS "a""b" FROM metrics'
    result = runs(tmp_path).sql(query)
    moment = datetime(1970, 1, 1, 0, 1, 30, 500_000, tzinfo=UTC)
    [found] = result.rows()
    assert (found["at"], found["at"].utcoffset(), found["at_1"]) == (moment, timedelta(0), None)
    assert [datetime.fromisoformat(text) for text in found['a"b']] == [moment]
    assert result.columns() == {name: [value] for name, value in found.items()}
    assert result.polars()["at"][0] == result.arrow()["at"][0].as_py() == moment


def test_hooks_with_a_count_that_is_no_number_lack_only_that(tmp_path):
    costs = {"hooks/me/calls": math.nan, "hooks/me/errors": math.inf, "hooks/me/total_seconds": 2.0}
    append(make_run(tmp_path), row(1, **costs), ended())
    [found] = runs(tmp_path).hooks()
    assert (found["calls"], found["errors"], found["total_ms"]) == (None, None, 2000.0)


def test_rows_of_small_and_large_runs_are_found_together(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.store.ingest.COMPACT_ROWS", 50)
    append(make_run(tmp_path, "small"), *[row(step, loss=1.0) for step in range(10)], ended(10))
    append(make_run(tmp_path, "large"), *[row(step, loss=2.0) for step in range(100)], ended(100))
    found = runs(tmp_path)
    counts = found.sql("SELECT run, count(*) AS n, sum(value) AS total FROM metrics GROUP BY run ORDER BY run").rows()
    assert counts == [{"run": "p/large", "n": 100, "total": 200.0}, {"run": "p/small", "n": 10, "total": 10.0}]
    files = (tmp_path / ".hookline" / "runs").glob("*/metrics-*.parquet")
    assert [path.parent.name.split("-")[0] for path in files] == ["p_large"]


def test_metrics_with_a_thousand_names_are_all_found(tmp_path):
    names = [f"layer{number}'s norm" for number in range(1500)]
    append(make_run(tmp_path), *[row(step, **dict.fromkeys(names, float(step))) for step in range(2)], ended(2))
    found = runs(tmp_path)
    assert sorted({each["name"] for each in found.metrics()}) == sorted(names)
    assert len(found.metric_names().rows()) == 1500
