"""The API of samples: one sample, its tokens, annotations and export."""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from sending import READ, TOKENS, WRITE

import hookline as hl
from hookline.store.annotations import read_annotations

HEADERS = {"Content-Type": "application/json", "X-Hookline-Action": "1"}


@pytest.fixture
def recorded(root):
    """A run with three samples; the first has tokens."""
    with hl.run("r", root=root, project="p", summary=False, console=False) as run:
        tokens = hl.Tokens(["a", "b"], logprobs=[-1.0, None])
        run.log_samples([{"completion": "ab", "tokens": tokens, "total": 1.0, "group": "g"}])
        run.log_samples([{"completion": "cd", "total": 0.0, "group": "g"}, {"completion": "plain"}])
    [info] = hl.runs(root)
    return info, {row["completion"]: row["id"] for row in hl.runs(root).samples()}


def get(server, path, **parameters):
    with urllib.request.urlopen(f"{server.url}api/{path}?{urllib.parse.urlencode(parameters)}") as answer:
        return json.load(answer)


def post(server, body, headers=HEADERS, **more):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"{server.url}api/actions/annotate_samples", data, {**headers, **more})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_sample_is_found_by_its_id_with_its_tokens(recorded, root, serve):
    info, ids = recorded
    server = serve(root)
    found = get(server, "samples/sample", run=info.id, sample=ids["ab"])["sample"]
    assert (found["completion"], found["tokens"]["data"]["count"]) == ("ab", 2)
    tokens = get(server, "samples/tokens", run=info.id, sample=ids["ab"])
    assert tokens == {"count": 2, "texts": ["a", "b"], "ids": None, "columns": {"logprobs": [-1.0, "NaN"]}}


def test_sample_has_the_steps_that_used_it_and_their_columns_of_tokens(root, serve):
    with hl.run("r", root=root, project="p", summary=False, console=False) as run:
        sampled = hl.Tokens(["a", "b"], logprobs=[-1.0, -2.0], advantage=[0.0, 0.0])
        run.log_samples([{"completion": "ab", "tokens": sampled, "rollout": "0-1", "timings": {"generate": 0.5}}])
        run.recorder.sample_use(["0-1"], 1, tokens={"0-1": hl.Tokens(ratio=[1.0, 1.0])})
        run.recorder.sample_use(["0-1", "0-2"], 2, tokens={"0-1": hl.Tokens(ratio=[1.5, 0.5], advantage=[1.0, 1.0])})
        run.recorder.sample_use(["0-1"], 3, "stale", tokens={"0-1": hl.Tokens(ratio=[9.0])})  # of another length
    [info] = hl.runs(root)
    (sample,) = hl.runs(root).samples().rows()
    server = serve(root)
    uses = get(server, "samples/uses", run=info.id, rollout="0-1")["uses"]
    assert [(use["step"], use["outcome"]) for use in uses] == [(1, "learnt"), (2, "learnt"), (3, "stale")]
    assert get(server, "samples/sample", run=info.id, sample=sample["id"])["sample"]["timings"] == {"generate": 0.5}
    columns = get(server, "samples/tokens", run=info.id, sample=sample["id"])["columns"]
    assert columns == {"logprobs": [-1.0, -2.0], "advantage": [0.0, 0.0]}


def test_columns_of_the_last_use_are_shown_with_those_of_the_sample(root, serve):
    with hl.run("r", root=root, project="p", summary=False, console=False) as run:
        sampled = hl.Tokens(["a", "b"], logprobs=[-1.0, -2.0], advantage=[0.0, 0.0])
        run.log_samples([{"completion": "ab", "tokens": sampled, "rollout": "0-1"}])
        for step, ratio in ((1, 1.0), (2, 1.5)):
            run.recorder.sample_use(["0-1"], step, tokens={"0-1": hl.Tokens(ratio=[ratio, 0.5], advantage=[1.0, 1.0])})
    [info] = hl.runs(root)
    (sample,) = hl.runs(root).samples().rows()
    shown = get(serve(root), "samples/tokens", run=info.id, sample=sample["id"])
    assert shown["texts"] == ["a", "b"]
    assert shown["columns"] == {"logprobs": [-1.0, -2.0], "advantage": [1.0, 1.0], "ratio": [1.5, 0.5]}


@pytest.mark.parametrize("name", ["nobody", "plain"])
def test_sample_or_tokens_that_do_not_exist_are_reported(recorded, root, serve, name):
    info, ids = recorded
    server = serve(root)
    sample = ids.get(name, name)
    assert (get(server, "samples/sample", run=info.id, sample=sample)["sample"] is None) == (name == "nobody")
    with pytest.raises(urllib.error.HTTPError) as refused:
        get(server, "samples/tokens", run=info.id, sample=sample)
    with refused.value as error:
        assert error.code == 404


def test_annotations_of_the_page_are_kept_beside_the_run_and_change_filtered_answers(recorded, root, serve):
    info, ids = recorded
    server = serve(root)
    assert get(server, "samples", run=info.id, label="good")["total"] == 0
    change = {"run": info.id, "samples": [{"sample": ids["ab"], "label": "good", "note": "nice"}]}
    assert post(server, change) == 200
    assert get(server, "samples", run=info.id, label="good")["total"] == 1
    [shown] = get(server, "samples/annotations", run=info.id)["annotations"]
    assert (shown["sample"], shown["label"], shown["note"]) == (ids["ab"], "good", "nice")
    assert read_annotations(info.directory)[0][ids["ab"]].note == "nice"
    exported = get(server, "samples/export", run=info.id, format="preference")
    assert exported == {"rows": [{"prompt": "", "chosen": "ab", "rejected": "cd"}], "left_out": 0}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-Hookline-Action": "1", "Content-Type": "text/plain"}, 415),
        ({"Content-Type": "application/json"}, 403),
        (HEADERS | {"Origin": "http://evil.example"}, 403),
        (HEADERS | {"Sec-Fetch-Site": "cross-site"}, 403),
        (HEADERS | {"X-Forwarded-For": "10.0.0.1"}, 403),
        (HEADERS | {"Host": "evil.example"}, 421),
    ],
    ids=str,
)
def test_annotation_from_another_site_is_refused(recorded, root, serve, headers, status):
    info, ids = recorded
    change = {"run": info.id, "samples": [{"sample": ids["ab"], "label": "good"}]}
    assert post(serve(root), change, headers) == status
    assert read_annotations(info.directory) == ({}, "")


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        ({"run": "p/r"}, 400),
        ({"run": "p/r", "samples": []}, 400),
        ({"run": "p/../p", "samples": [{"sample": "a", "label": "good"}]}, 404),
        ({"run": "p/none", "samples": [{"sample": "a", "label": "good"}]}, 404),
        ({"run": None, "samples": [{"sample": "a", "label": "best"}]}, 400),
    ],
    ids=str,
)
def test_annotation_that_is_not_accepted_is_refused(recorded, root, serve, body, status):
    info, _ = recorded
    if isinstance(body, dict) and body["run"] is None:
        body = body | {"run": info.id}
    assert post(serve(root), body) == status


def test_annotation_on_a_server_needs_a_token_that_may_write(recorded, root, serve):
    info, ids = recorded
    server = serve(root, tokens=TOKENS)
    change = {"run": info.id, "samples": [{"sample": ids["ab"], "label": "bad"}]}
    assert post(server, change) == 401
    assert post(server, change, Authorization=f"Bearer {READ}") == 403
    assert post(server, change, Authorization=f"Bearer {WRITE}") == 200
    assert read_annotations(info.directory)[0][ids["ab"]].label == "bad"


def test_read_only_run_is_not_annotated(recorded, root, serve):
    info, ids = recorded
    server = serve(root)
    change = {"run": info.id, "samples": [{"sample": ids["ab"], "label": "good"}]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: False)
        assert post(server, change) == 403
    assert read_annotations(info.directory) == ({}, "")
