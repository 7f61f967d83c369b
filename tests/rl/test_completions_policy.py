"""A policy behind an OpenAI-compatible server: requests, answers, and what happens without an answer."""

import importlib.util
import logging
import pickle
import threading

import pytest
from completion_server import CompletionServer, Reply, as_vllm, choice

from hookline._engine.errors import MissingExtraError, OptionError, RefusedError
from hookline.rl.policies.base import Policy, PolicyError
from hookline.rl.types import Completion, Sampling

pytest.importorskip("httpx")

from hookline.rl.policies.completions import CompletionsPolicy


@pytest.fixture
def server():
    server = CompletionServer()
    yield server
    server.stop()


class Time:
    """A clock that advances by waiting, with an action for the n-th wait."""

    def __init__(self, **during):
        self.now = 100.0
        self.waits = []
        self.during = {int(name.removeprefix("wait_")): act for name, act in during.items()}

    def clock(self):
        return self.now

    def wait(self, seconds):
        self.waits.append(seconds)
        self.now += seconds
        self.during.get(len(self.waits), lambda: None)()


@pytest.fixture
def connect(server):
    """Makes policies, which are closed with the test."""
    made = []

    def make(time=None, **options):
        time = time or Time()
        options = {"url": server.url, "model": "tiny", "clock": time.clock, "wait": time.wait} | options
        made.append(CompletionsPolicy(**options))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def texts(groups):
    return [[completion.text for completion in group] for group in groups]


def replies(*given):
    """Answers with one after the other, then as vLLM does."""
    left = list(given)
    return lambda body: left.pop(0) if left else as_vllm(body)


def answer(*choices):
    return Reply(body={"choices": list(choices)})


def test_completions_policy_is_a_policy(connect):
    assert isinstance(connect(), Policy)


def test_generate_requests_each_prompt_and_keeps_their_order(server, connect):
    written = connect(connections=2).generate(["a", "bcd", ""], 2, Sampling())
    assert texts(written) == [["1.0", "1.1"], ["3.0", "3.1"], ["0.0", "0.1"]]
    assert written[1][0] == Completion(
        text="3.0", token_ids=[51, 46, 48], logprobs=[-0.5] * 3, finish="stop", prompt_ids=[98, 99, 100]
    )


def test_generate_sends_the_whole_sampling(server, connect):
    sampling = Sampling(temperature=0.7, top_p=0.9, max_tokens=5, stop=["\n", "#"], seed=3)
    connect(api_key="secret").generate(["a"], 4, sampling)
    [request] = server.requests
    assert request.path == "/v1/completions"
    assert request.headers["authorization"] == "Bearer secret"
    assert isinstance(request.body.pop("seed"), int)
    assert request.body == {
        "model": "tiny",
        "prompt": "a",
        "n": 4,
        "max_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "logprobs": 1,
        "stop": ["\n", "#"],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_generate_sends_no_options_that_are_unset(server, connect):
    connect(token_ids=False).generate(["a"], 1, Sampling())
    [request] = server.requests
    assert sorted(request.body) == ["logprobs", "max_tokens", "model", "n", "prompt", "temperature", "top_p"]
    assert "authorization" not in request.headers


def test_seed_is_another_for_each_prompt_and_the_same_again(server, connect):
    policy = connect(connections=1)
    for seed in (1, 1, 2):
        policy.generate(["a", "a"], 1, Sampling(seed=seed))
    seeds = [request.body["seed"] for request in server.requests]
    assert seeds[:2] == seeds[2:4]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_greedy_is_requested_once_and_returned_n_times(server, connect):
    [group] = connect().generate(["a"], 3, Sampling(temperature=0))
    assert [completion.text for completion in group] == ["1.0"] * 3
    assert [request.body["n"] for request in server.requests] == [1]


def test_requests_are_sent_at_the_same_time_up_to_the_connections(server, connect):
    together = threading.Barrier(3, timeout=60)
    under_way, most = [], []

    def respond(body):
        under_way.append(body)
        most.append(len(under_way))
        together.wait()
        under_way.pop()
        together.wait()
        return as_vllm(body)

    server.respond = respond
    written = connect(connections=3).generate(["a"] * 9, 1, Sampling())
    assert texts(written) == [["1.0"]] * 9
    assert max(most) == 3


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Completion("x", [], [], "stop", [])),
        ({"logprobs": None, "finish_reason": None, "stop_reason": None}, Completion("x", [], [], "stop", [])),
        ({"finish_reason": "length"}, Completion("x", [], [], "length", [])),
        ({"finish_reason": "abort"}, Completion("x", [], [], "length", [])),
        ({"finish_reason": "eos_token"}, Completion("x", [], [], "stop", [])),
        ({"logprobs": {"tokens": ["x"], "token_logprobs": [-1]}}, Completion("x", [], [-1.0], "stop", [])),
        ({"logprobs": {"tokens": ["token_id:7"], "token_logprobs": [-1]}}, Completion("x", [7], [-1.0], "stop", [])),
        ({"logprobs": {"content": [{"id": 7, "logprob": -1.5}]}}, Completion("x", [7], [-1.5], "stop", [])),
        ({"logprobs": {"content": [{"token": "x", "logprob": -1}]}}, Completion("x", [], [-1.0], "stop", [])),
        ({"token_ids": [7], "prompt_token_ids": [1, 2]}, Completion("x", [7], [], "stop", [1, 2])),
        ({"token_ids": []}, Completion("x", [], [], "stop", [])),
    ],
)
def test_answer_of_any_known_form_is_read(server, connect, given, expected):
    server.respond = lambda body: answer(choice(0, "x") | given)
    assert connect().generate(["a"], 1, Sampling()) == [[expected]]


def test_answer_with_choices_out_of_order_is_put_in_order(server, connect):
    server.respond = lambda body: answer(choice(1, "b"), choice(0, "a"))
    assert texts(connect().generate(["x"], 2, Sampling())) == [["a", "b"]]


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply(body=b"<html>"), "JSON is malformed.*'<html>'"),
        (Reply(body=b""), "Input data was truncated"),
        (Reply(body={"id": 1}), "missing required field `choices`"),
        (answer(choice(0, "x")), "2 completions were requested, and 1 received"),
        (answer(choice(0, "x"), choice(1, 5)), r"Expected `str`, got `int` - at `\$.choices\[1\].text`"),
        (
            answer(choice(0, "x"), choice(1, "y", logprobs={"token_logprobs": [None]})),
            "Expected `float`, got `null`",
        ),
        (
            answer(choice(0, "x"), choice(1, "y", token_ids=[1, 2], logprobs={"token_logprobs": [-1.0]})),
            "a choice has 2 token ids and 1 log-probabilities",
        ),
    ],
)
def test_completions_policy_invalid_answer_raises_at_once(server, connect, reply, message):
    server.respond, time = lambda body: reply, Time()
    with pytest.raises(PolicyError, match=f"{server.url}/v1/completions does not answer like .* {message}.*Check url="):
        connect(time).generate(["a"], 2, Sampling())
    assert (time.waits, len(server.requests)) == ([], 1)


@pytest.mark.parametrize(
    ("code", "body", "message"),
    [
        (404, {"error": {"message": "The model `tiny` does not exist."}}, "404 .*'tiny'.*does not exist.*model="),
        (404, {"object": "error", "message": "no such model"}, "404 .*'no such model'.*Check url= and model="),
        (401, {"error": "Unauthorized"}, "401 .*'Unauthorized'.*Give the right api_key="),
        (403, b"nope", "403 .*'nope'.*Give the right api_key="),
        (400, {"detail": "unknown field return_token_ids"}, "400 .*unknown field.*give token_ids=False"),
        (422, {"detail": [{"msg": "bad"}]}, "422 .*bad"),
        (307, b"", "307 .*Check url="),
    ],
)
def test_completions_policy_refusal_raises_at_once_with_the_servers_message(server, connect, code, body, message):
    server.respond, time = lambda request: Reply(code, body), Time()
    with pytest.raises(RefusedError, match=f"{server.url}/v1/completions answers {message}"):
        connect(time, connections=1).generate(["a", "b"], 1, Sampling())
    assert time.waits == []


def test_completions_policy_waits_for_a_server_that_is_down_and_warns_once(server, connect, caplog):
    server.stop()
    time = Time(wait_3=server.listen)
    with caplog.at_level(logging.INFO, "hookline"):
        written = connect(time).generate(["a", "bc"], 1, Sampling())
    assert texts(written) == [["1.0"], ["2.0"]]
    assert time.waits == [1.0, 2.0, 4.0]
    down, back = (record.getMessage() for record in caplog.records if record.name == "hookline")
    assert down.startswith(f"No answer: {server.url}/v1/completions: ConnectError")
    assert down.endswith("Retrying for up to 600 s.")
    assert back == f"{server.url}/v1/completions answers again, after 7 s."


def test_completions_policy_gives_up_on_a_server_that_stays_down(server, connect):
    server.stop()
    time = Time()
    message = f"No answer for 100 s: {server.url}/v1/completions: ConnectError.*Start the server, check url="
    with pytest.raises(PolicyError, match=message):
        connect(time, patience_seconds=100).generate(["a"], 1, Sampling())
    assert time.waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 9.0]


def test_server_that_is_down_without_patience_raises_at_once(server, connect):
    server.stop()
    time = Time()
    with pytest.raises(PolicyError, match="No answer for"):
        connect(time, patience_seconds=0).generate(["a"], 1, Sampling())
    assert time.waits == []


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503])
def test_busy_server_is_retried(server, connect, code):
    server.respond, time = replies(Reply(code, {"error": {"message": "loading"}})), Time()
    assert texts(connect(time).generate(["a"], 1, Sampling())) == [["1.0"]]
    assert time.waits == [1.0]


def test_server_that_stays_busy_raises_with_its_message(server, connect):
    server.respond = lambda body: Reply(503, {"error": {"message": "loading the model"}})
    with pytest.raises(PolicyError, match="503 Service Unavailable: 'loading the model'"):
        connect(patience_seconds=5).generate(["a"], 1, Sampling())


def test_server_that_asks_to_be_left_alone_is_left_alone(server, connect):
    server.respond, time = replies(Reply(429, b"", (("Retry-After", "17"),))), Time()
    connect(time).generate(["a"], 1, Sampling())
    assert time.waits == [17.0]


def test_server_that_hangs_is_retried_after_the_time_limit(server, connect):
    gate, hangs = threading.Event(), [True]

    def respond(body):
        if hangs.pop() if hangs else False:
            gate.wait()
        return as_vllm(body)

    server.respond, time = respond, Time()
    try:
        assert texts(connect(time, timeout_seconds=0.2).generate(["a"], 1, Sampling())) == [["1.0"]]
    finally:
        gate.set()
    assert time.waits[:1] == [1.0]


def test_incomplete_answer_is_requested_again(server, connect):
    server.respond, time = replies(Reply(body=b'{"choices"', breaks_off=True)), Time()
    assert texts(connect(time).generate(["a"], 1, Sampling())) == [["1.0"]]
    assert time.waits == [1.0]


def test_answered_prompts_are_not_requested_again(server, connect):
    fine = [as_vllm({"prompt": "a", "n": 1}), as_vllm({"prompt": "bb", "n": 1})]
    server.respond, time = replies(*fine, Reply(500, b"")), Time()
    written = connect(time, connections=1).generate(["a", "bb", "ccc", "dddd"], 1, Sampling())
    assert texts(written) == [["1.0"], ["2.0"], ["3.0"], ["4.0"]]
    assert server.prompts == ["a", "bb", "ccc", "ccc", "dddd"]
    assert time.waits == [1.0]


def test_patience_restarts_with_each_answer_and_warns_once(server, connect, caplog):
    server.respond = lambda body: Reply(500, b"") if len(server.requests) % 3 else as_vllm(body)
    time = Time()
    written = connect(time, connections=1, patience_seconds=4).generate(["a"] * 5, 1, Sampling())
    assert texts(written) == [["1.0"]] * 5
    assert time.waits == [1.0, 2.0] * 5
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


def test_no_prompts_ask_nothing(server, connect):
    assert connect().generate([], 2, Sampling()) == []
    assert server.requests == []


def test_interrupt_while_waiting_ends_it(server, connect):
    server.stop()

    def interrupt(seconds):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        connect(wait=interrupt).generate(["a"], 1, Sampling())


def test_policy_that_was_closed_connects_again(server, connect):
    with connect() as policy:
        policy.generate(["a"], 1, Sampling())
    policy.close()
    assert texts(policy.generate(["a"], 1, Sampling())) == [["1.0"]]


def test_policy_before_its_first_request_can_be_sent_to_another_process(server):
    with pickle.loads(pickle.dumps(CompletionsPolicy(server.url, "tiny"))) as policy:
        assert texts(policy.generate(["a"], 1, Sampling())) == [["1.0"]]


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/completions"])
def test_url_may_name_the_server_or_its_interface(server, connect, end):
    assert texts(connect(url=server.url + end).generate(["a"], 1, Sampling())) == [["1.0"]]
    assert server.requests[0].path == "/v1/completions"


@pytest.mark.parametrize("url", ["localhost:8000", "", None, "ftp://host", "http://", "http://host:port"])
def test_invalid_url_raises(url):
    with pytest.raises(OptionError, match="url=.*: give the address of the server, such as"):
        CompletionsPolicy(url, "tiny")


def test_url_with_a_password_is_an_error_that_does_not_show_it():
    with pytest.raises(OptionError, match="contains a password. Give it as api_key=") as caught:
        CompletionsPolicy("http://me:hidden@host", "tiny")
    assert "hidden" not in str(caught.value)


def test_api_key_is_read_from_the_environment(server, connect, monkeypatch):
    policy = connect(api_key="${POLICY_API_KEY}")
    with pytest.raises(RefusedError, match="api_key takes .*POLICY_API_KEY.* not set"):
        policy.generate(["a"], 1, Sampling())
    monkeypatch.setenv("POLICY_API_KEY", "secret")
    policy.generate(["a"], 1, Sampling())
    assert server.requests[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    "option",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"patience_seconds": -1},
        {"patience_seconds": True},
        {"connections": 0},
        {"connections": 1.5},
    ],
)
def test_option_that_makes_no_sense_is_an_error(option):
    with pytest.raises(OptionError, match=f"{next(iter(option))}=.*: give a"):
        CompletionsPolicy("http://localhost", "tiny", **option)


def test_request_that_makes_no_sense_is_an_error(connect):
    with pytest.raises(OptionError, match="n=0"):
        connect().generate(["a"], 0, Sampling())


def test_httpx_missing_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"CompletionsPolicy needs .* pip install 'hookline\[status\]'"):
        CompletionsPolicy("http://localhost", "tiny")


def test_completions_policy_load_weights_without_update_raises(server, connect):
    policy = connect()
    with pytest.raises(OptionError, match=r"cannot load weights.*update=function"):
        policy.load_weights(1, {})
    assert policy.version == 0


def test_load_weights_hands_them_to_the_update_function(connect):
    given = []
    policy = connect(update=lambda version, weights: given.append((version, weights)))
    policy.load_weights(3, {"w": 1})
    assert (policy.version, given) == (3, [(3, {"w": 1})])


def test_load_weights_that_fails_leaves_the_version(connect):
    def update(version, weights):
        raise ConnectionError("not there")

    policy = connect(update=update)
    with pytest.raises(ConnectionError, match="not there"):
        policy.load_weights(3, {})
    assert policy.version == 0
