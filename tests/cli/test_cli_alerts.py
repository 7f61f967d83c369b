"""``hookline alerts`` lists, acknowledges and mutes the alerts of a root, and checks alert files."""

import json
import time

import pytest

from hookline.store.alert_book import AlertBook, RaisedAlert


@pytest.fixture
def book(tmp_path):
    book = AlertBook(tmp_path)
    raised = [
        RaisedAlert("aa11", "p/one", "high", "loss is 9", 1000.0, "loss", 9.0, 3),
        RaisedAlert("bb22", "p/two", "silence", "nothing was recorded for 99 s", 2000.0),
    ]
    book.add(raised, ["slack"])
    return book


def test_alerts_list_shows_the_latest_first(cli, book, tmp_path):
    document = json.loads(cli("alerts", "list", "--root", tmp_path, "--json").stdout)
    assert [(each["id"], each["state"]) for each in document["alerts"]] == [("bb22", "pending"), ("aa11", "pending")]
    assert "loss is 9" in cli("alerts", "list", "--root", tmp_path).stdout


def test_alerts_ack_takes_beginnings_of_ids_and_hides_them(cli, book, tmp_path):
    assert "aa11" in cli("alerts", "ack", "aa", "--root", tmp_path).stdout
    document = json.loads(cli("alerts", "list", "--root", tmp_path, "--json").stdout)
    assert [each["id"] for each in document["alerts"]] == ["bb22"]
    wrong = cli("alerts", "ack", "zz", "--root", tmp_path)
    assert (wrong.exit_code, "no alert" in wrong.stderr) == (2, True)


def test_alerts_list_with_all_has_acknowledged_ones_and_ends_at_the_limit(cli, book, tmp_path):
    cli("alerts", "ack", "bb22", "--root", tmp_path)

    def listed(*options):
        found = json.loads(cli("alerts", "list", "--root", tmp_path, "--json", *options).stdout)
        return [each["id"] for each in found["alerts"]]

    assert [listed(), listed("--all"), listed("--all", "--limit", "1")] == [["aa11"], ["bb22", "aa11"], ["bb22"]]


def test_alerts_mute_for_a_time_ends_by_itself(cli, book, tmp_path):
    assert "rule high" in cli("alerts", "mute", "--rule", "high", "--for", "2h", "--root", tmp_path).stdout
    (mute,) = book.read().mutes
    assert 7000 < mute.until - time.time() <= 7200
    assert cli("alerts", "mute", "--rule", "high", "--for", "soon", "--root", tmp_path).exit_code == 2


def test_alerts_mute_is_listed_and_can_be_ended(cli, book, tmp_path):
    assert (
        "muted: rule high in run p/one"
        in cli("alerts", "mute", "--rule", "high", "--run", "p/one", "--root", tmp_path).stdout
    )
    assert book.read().alerts["aa11"].state == "muted"
    ended = cli("alerts", "mute", "--rule", "high", "--run", "p/one", "--off", "--root", tmp_path)
    assert "Nothing is muted." in ended.stdout
    assert cli("alerts", "mute", "--root", tmp_path).exit_code == 2


def test_alerts_test_checks_the_file(cli, tmp_path):
    file = tmp_path / "alerts.yaml"
    file.write_text("callbacks: [{alert: {above: 3}}]\nsilence_seconds: 60\n")
    document = json.loads(cli("alerts", "test", file, "--json").stdout)
    assert document == {"rules": ["alert"], "silence_seconds": 60, "destinations": {}}
    file.write_text("deliver: [pigeon]")
    assert cli("alerts", "test", file).exit_code == 2
