"""``hookline replay`` prints what callbacks would have done beside what happened."""

import json

import pytest

import hookline as hl

CALLBACKS = """
callbacks:
  - early_stopping: {monitor: val/loss, patience: 2}
  - alert: {metric: loss, above: 0.8}
  - checkpoint: {monitor: val/loss, save_top_k: 1, save_last: false}
"""


@pytest.fixture
def recorded(tmp_path):
    with hl.run("night", root=tmp_path / "runs", console=False, code=False, summary=False) as run:
        for epoch in run.epochs(4):
            for step in run.steps(2):
                run.log(loss=0.9 if (epoch, step) == (1, 1) else 0.5)
            with run.validate() as val:
                val.log(loss=[0.3, 0.2, 0.4, 0.5][epoch])
    (tmp_path / "rules.yaml").write_text(CALLBACKS)
    return run


def test_replay_command_with_json_has_decisions_and_the_recording(cli, recorded, tmp_path):
    done = cli("replay", "latest", "--callbacks", tmp_path / "rules.yaml", "--root", tmp_path / "runs", "--json")

    document = json.loads(done.stdout)

    assert document["stops"] == [
        {
            "step": 8,
            "reason": "early stopping: val/loss has not improved on 0.2 for 2 checks",
            "subscriber": "early_stopping",
        }
    ]
    assert [(alert["step"], alert["value"]) for alert in document["alerts"]] == [(4, 0.9)]
    assert document["checkpoints"] == [
        {"step": 2, "deleted_at": 4, "subscriber": "checkpoint"},
        {"step": 4, "deleted_at": None, "subscriber": "checkpoint"},
    ]
    assert (document["recorded"]["status"], document["recorded"]["step"]) == ("finished", 8)


def test_replay_command_prints_decisions_and_reasons(cli, recorded, tmp_path):
    done = cli("replay", "latest", "--callbacks", tmp_path / "rules.yaml", "--root", tmp_path / "runs")

    assert "The recording finished at step 8." in done.stdout
    assert "step 8  early_stopping: early stopping: val/loss has not improved on 0.2 for 2 checks" in done.stdout
    assert "step 4  alert: loss is 0.9, above 0.8, at step 4" in done.stdout


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [("rules.py", "", "this is Python"), ("rules.yaml", "callbacks: [early_stoping]", "early_stopping")],
)
def test_replay_command_with_a_wrong_file_says_what_to_give(cli, recorded, tmp_path, file, content, message):
    (tmp_path / file).write_text(content)

    done = cli("replay", "latest", "--callbacks", tmp_path / file, "--root", tmp_path / "runs")

    assert done.exit_code == 2
    assert message in done.stderr
