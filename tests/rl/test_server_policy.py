"""`ServerPolicy` against a strict server that speaks the APIs of vLLM and SGLang, with a small real model."""

import asyncio
import importlib.util
import itertools

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inference_server import CONTEXT_LENGTH, InferenceServer, ServerProcess, TableModel, TorchModel, distribution  # noqa: E402

import hookline as hl  # noqa: E402
from hookline import rl  # noqa: E402
from hookline._engine.errors import MissingExtraError, OptionError, RefusedError  # noqa: E402
from hookline.testing import character_tokenizer, chat_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>")
MODEL = tiny_causal_lm(TOKENIZER, seed=1)
CHAT_TOKENIZER = chat_tokenizer("0123456789")
CHAT_MODEL = tiny_causal_lm(CHAT_TOKENIZER, seed=1)
APIS = ["vllm", "sglang"]
PROMPT = TOKENIZER("31>")["input_ids"]


@pytest.fixture
def serve():
    """Starts servers, which are stopped with the test."""
    made = []

    def start(api, model=None, **options):
        made.append(InferenceServer(api, TableModel() if model is None else model, **options))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def connect():
    """Makes policies, which are closed with the test."""
    made = []

    def make(*servers, **options):
        options = {
            "api": servers[0].api,
            "retry_seconds": 0.01,
            "patience_seconds": 60,
            "tokenizer": TOKENIZER,
        } | options
        made.append(rl.ServerPolicy([server.url for server in servers], **options))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def sample(policy, *requests):
    """The completions of requests that are made at the same time."""

    async def together():
        return await asyncio.gather(*(policy.sample(request) for request in requests))

    return asyncio.run(together())


def request(seed=0, prompt=PROMPT, group="", **sampling):
    return rl.SampleRequest(prompt, rl.Sampling(**{"max_tokens": 8, "seed": seed} | sampling), group=group)


def own_logprobs(model, completion, temperature=1.0, top_p=1.0):
    """The log-probabilities of a completion by the model itself."""
    with torch.no_grad():
        logits = model(torch.tensor([[*completion.prompt_ids, *completion.token_ids]])).logits[0].double()
    rows = logits[len(completion.prompt_ids) - 1 : -1].tolist()
    return [distribution(row, temperature, top_p)[token] for row, token in zip(rows, completion.token_ids, strict=True)]


@pytest.mark.parametrize("api", APIS)
def test_sample_returns_tokens_with_the_logprobs_of_the_model(serve, connect, api):
    policy = connect(serve(api, TorchModel(MODEL, TOKENIZER)))
    first, again, other = sample(policy, request(1), request(1), request(2))
    assert first == again != other
    assert first.prompt_ids == PROMPT
    assert first.text == TOKENIZER.decode(first.token_ids, skip_special_tokens=True)
    assert first.logprobs == pytest.approx(own_logprobs(MODEL, first), abs=1e-5)
    assert first.sampled_logprobs == ()
    assert first.versions == [0] * len(first.token_ids)
    assert isinstance(policy, rl.AsyncPolicy)


@pytest.mark.parametrize(("api", "top_p"), [("vllm", 0.6), ("vllm", 1.0), ("sglang", 1.0)])
def test_sample_with_processed_sampling_returns_the_logprobs_of_what_was_sampled(serve, connect, api, top_p):
    policy = connect(serve(api, TorchModel(MODEL, TOKENIZER)))
    (made,) = sample(policy, request(temperature=0.7, top_p=top_p))
    assert made.logprobs == ()
    assert made.sampled_logprobs == pytest.approx(own_logprobs(MODEL, made, 0.7, top_p), abs=1e-5)


@pytest.mark.parametrize(
    ("api", "advice"), [("vllm", "--logprobs-mode processed_logprobs"), ("sglang", "SGLANG_RETURN")]
)
def test_server_with_raw_logprobs_is_refused_where_they_would_be_wrong(serve, connect, api, advice):
    policy = connect(serve(api, TorchModel(MODEL, TOKENIZER), kind="raw_logprobs"))
    (made,) = sample(policy, request())
    assert made.logprobs == pytest.approx(own_logprobs(MODEL, made), abs=1e-5)
    with pytest.raises(OptionError, match=f"raw_logprobs.*temperature=0.7.*{advice}"):
        sample(policy, request(temperature=0.7))


def test_top_p_is_refused_for_sglang_whose_logprobs_do_not_include_it(serve, connect):
    with pytest.raises(OptionError, match="top_p=0.9 with SGLang.*give top_p=1"):
        sample(connect(serve("sglang")), request(top_p=0.9))


@pytest.mark.parametrize("api", APIS)
def test_greedy_sample_is_the_most_likely_continuation(serve, connect, api):
    policy = connect(serve(api, TorchModel(MODEL, TOKENIZER), kind="raw_logprobs"))
    (made,) = sample(policy, request(temperature=0))
    [[expected]] = rl.HFPolicy(MODEL, TOKENIZER).generate([PROMPT], 1, rl.Sampling(temperature=0, max_tokens=8))
    assert (made.token_ids, made.finish) == (expected.token_ids, expected.finish)
    assert made.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


# Requests: what is sent, and where.


@pytest.mark.parametrize(
    ("api", "path", "expected"),
    [
        (
            "vllm",
            "/inference/v1/generate",
            {
                "model": "tiny",
                "token_ids": PROMPT,
                "stream": False,
                "sampling_params": {
                    "n": 1,
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "max_tokens": 5,
                    "logprobs": 0,
                    "seed": 3,
                    "stop": ["z", "<eos>"],
                    "stop_token_ids": [TOKENIZER.eos_token_id],
                    "ignore_eos": False,
                },
            },
        ),
        (
            "sglang",
            "/generate",
            {
                "input_ids": PROMPT,
                "return_logprob": True,
                "stream": False,
                "lora_path": None,
                "sampling_params": {
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "max_new_tokens": 5,
                    "sampling_seed": 3,
                    "stop": ["z", "<eos>"],
                    "stop_token_ids": [TOKENIZER.eos_token_id],
                    "ignore_eos": False,
                },
            },
        ),
    ],
)
def test_request_has_the_whole_sampling(serve, connect, api, path, expected):
    server = serve(api)
    sample(connect(server), request(3, max_tokens=5, stop=["z", TOKENIZER.eos_token]))
    [body] = server.calls(path)
    assert body.pop("rid" if api == "sglang" else "request_id").startswith("hookline-")
    assert body == expected


def test_prompt_that_is_a_text_is_tokenized_here(serve, connect):
    (made,) = sample(connect(serve("vllm")), request(prompt="31>"))
    assert made.prompt_ids == PROMPT


def test_requests_of_a_group_go_to_one_server_and_groups_to_all(serve, connect):
    servers = [serve("vllm") for _ in range(3)]
    policy = connect(*servers)
    sample(policy, *(request(seed, [1 + number], f"group {number}") for number in range(6) for seed in range(4)))
    served = [{tuple(body["token_ids"]) for body in server.calls("/inference/v1/generate")} for server in servers]
    assert sorted(itertools.chain(*served)) == [(1 + number,) for number in range(6)]
    assert all(served)


def test_context_length_is_the_servers_and_limits_completions(serve, connect):
    policy = connect(serve("vllm"))
    assert policy.context_length == CONTEXT_LENGTH
    (made,) = sample(policy, request(prompt=[1] * (CONTEXT_LENGTH - 1), max_tokens=50))
    assert len(made.token_ids) == 1
    with pytest.raises(OptionError, match="has 64 tokens, the servers 64 positions"):
        sample(policy, request(prompt=[1] * CONTEXT_LENGTH))


def test_prompt_with_images_is_refused(serve, connect):
    with pytest.raises(OptionError, match="the prompt has images"):
        sample(connect(serve("vllm")), rl.SampleRequest(PROMPT, images=["image"]))


@pytest.mark.parametrize("api", APIS)
def test_cancelled_request_stops_being_generated(serve, connect, api):
    server = serve(api)
    server.engine.hold_after = 2
    policy = connect(server)

    async def cancel():
        task = asyncio.ensure_future(policy.sample(request(prompt=[5])))
        await asyncio.to_thread(server.engine.held.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while server.engine.running:
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(cancel(), 60))
    assert server.engine.served <= 1


# Failures.


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("fault", ["503", "429", "500"])
def test_busy_server_is_asked_again(serve, connect, api, fault):
    server = serve(api)
    server.engine.faults = iter([fault, fault])
    made = sample(connect(server), *(request(seed) for seed in range(4)))
    assert [each.token_ids for each in made] == [
        each.token_ids for each in sample(connect(serve(api)), *(request(seed) for seed in range(4)))
    ]


def test_request_that_servers_fail_at_raises_and_others_are_answered(serve, connect):
    server = serve("vllm")
    policy = connect(server)
    server.engine.faults = iter(["500"] * 3)
    with pytest.raises(rl.PolicyError, match="/inference/v1/generate answers 500 .*no room"):
        sample(policy, request())
    assert sample(policy, request())[0].token_ids


def test_busy_server_leaves_requests_to_the_others(serve, connect):
    busy, other = serve("vllm"), serve("vllm")
    busy.engine.faults = itertools.repeat("503")
    made = sample(connect(busy, other), *(request(seed) for seed in range(20)))
    assert len(made) == other.engine.served == 20


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("lengths", "log-probabilities"),
        ("nan", "malformed"),
        ("truncated", "truncated|malformed"),
        ("garbage", "malformed.*it works"),
    ],
)
def test_answer_that_cannot_be_right_is_an_error_of_its_request_alone(serve, connect, api, fault, message):
    server = serve(api)
    policy = connect(server)
    server.engine.faults = iter([fault])
    with pytest.raises(rl.PolicyError, match=f"{server.url} returned an invalid answer: .*({message})"):
        sample(policy, request())
    assert sample(policy, request())[0].token_ids


@pytest.mark.parametrize(
    ("tokens", "logprobs", "message"),
    [
        ([1, 2], [-0.5], "2 token ids and 1 log-probabilities"),
        ([1] * 5, [-0.5] * 5, "5 tokens, and at most 4"),
        ([], [], "no tokens"),
        ([99], [-0.5], "the token 99"),
        ([-1], [-0.5], "the token -1"),
        ([1], [0.5], "the log-probability 0.5"),
        ([1], [-9999.0], "the log-probability -9999.0"),
        ([1], [float("nan")], "the log-probability nan"),
    ],
)
def test_answer_out_of_range_is_refused(tokens, logprobs, message):
    from hookline.rl.policies.server_api import Sampled, checked

    with pytest.raises(rl.PolicyError, match=message):
        checked(Sampled(tokens, logprobs, "stop"), max_tokens=4, vocabulary=16)


@pytest.mark.parametrize("api", APIS)
def test_refused_request_raises_at_once_with_the_servers_message(serve, connect, api):
    policy = connect(serve(api))
    with pytest.raises(RefusedError, match="answers 400 .*a token is out of vocabulary.*Check api="):
        sample(policy, request(prompt=[4000]))


def test_api_key_is_read_from_the_environment_and_a_wrong_one_is_an_error(serve, connect, monkeypatch):
    server = serve("vllm")
    server.engine.api_key = "secret"
    monkeypatch.setenv("POLICY_API_KEY", "secret")
    assert sample(connect(server, api_key="${POLICY_API_KEY}"), request())[0].token_ids
    with pytest.raises(RefusedError, match="answers 401 .*Unauthorized.*Give the right api_key="):
        sample(connect(server), request())


def test_server_that_stays_away_is_given_up(serve, connect):
    server = serve("vllm")
    server.engine.is_healthy = False
    with pytest.raises(rl.PolicyError, match=r"No server could be used for .*503.*patience_seconds=0.1"):
        sample(connect(server, patience_seconds=0.1), request())


def test_server_that_is_away_is_waited_for(serve, connect, caplog):
    server = serve("vllm")
    server.engine.is_healthy = False
    policy = connect(server)

    async def come_back():
        task = asyncio.ensure_future(policy.sample(request()))
        while not caplog.records:
            await asyncio.sleep(0)
        server.engine.is_healthy = True
        return await task

    assert asyncio.run(come_back()).token_ids
    assert "gets no requests until it answers again" in caplog.text


def test_another_kind_of_server_is_refused_at_once(serve, connect):
    policy = connect(serve("sglang"), api="vllm")
    with pytest.raises(RefusedError, match="/inference/v1/generate answers 404 .*Check urls=, api="):
        sample(policy, request())


def test_closed_policy_fails_requests_that_wait(serve, connect):
    server = serve("vllm")
    server.engine.is_healthy = False
    policy = connect(server)

    async def close():
        task = asyncio.ensure_future(policy.sample(request()))
        await asyncio.sleep(0)
        policy.close()
        with pytest.raises(rl.PolicyError, match="The policy is closed"):
            await task
        with pytest.raises(rl.PolicyError, match="The policy is closed"):
            await policy.sample(request())

    asyncio.run(close())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"urls": []}, "urls=.*give the addresses"),
        ({"urls": "localhost:8000"}, "urls='localhost:8000': give the address"),
        ({"urls": ["http://a", "http://a/"]}, "names a server twice"),
        ({"urls": "http://me:hidden@a"}, "contains a password"),
        ({"api": "openai"}, "api='openai'"),
        ({"weights": "checkpoint"}, "without directory="),
        ({"weights": "checkpoint", "directory": "x"}, "source=None with weights='checkpoint'"),
        ({"weights": "adapter", "directory": "x", "source": MODEL}, "with weights='adapter': give .* adapters"),
        ({"connections": 0}, "connections=0"),
        ({"timeout_seconds": 0}, "timeout_seconds=0"),
        ({"no_such_option": 1}, "no_such_option"),
    ],
)
def test_invalid_option_raises(options, message):
    options = {"urls": "http://localhost:1", "api": "vllm"} | options
    with pytest.raises(OptionError, match=message):
        rl.ServerPolicy(tokenizer=TOKENIZER, **options)


def test_httpx_missing_is_an_error_with_the_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'hookline\[status\]'"):
        rl.ServerPolicy("http://localhost", api="vllm", tokenizer=TOKENIZER)


@pytest.fixture
def start(torch_programs):
    """Starts servers in processes of their own."""
    made = []

    def start(port=0):
        made.append(ServerProcess(torch_programs, "vllm", port=port))
        return made[-1]

    yield start
    for server in made:
        server.kill()


def test_server_killed_in_a_rollout_loses_and_doubles_no_sample(serve, start, connect):
    requests = [request(seed, [1 + seed % 7], f"group {seed % 7}", max_tokens=40) for seed in range(120)]
    expected = [made.token_ids for made in sample(connect(serve("vllm")), *requests)]
    servers = [start() for _ in range(3)]
    policy, answered = connect(*servers), []

    async def one(each):
        made = await policy.sample(each)
        answered.append(each.sampling.seed)
        if len(answered) == 20:
            servers[0].kill()
        return made.token_ids

    async def roll_out():
        return await asyncio.gather(*(one(each) for each in requests))

    assert asyncio.run(roll_out()) == expected
    assert sorted(answered) == list(range(120))
    back = start(servers[0].port)
    while not back.served:
        sample(policy, *(request(seed) for seed in range(6)))


# Rollouts.


class Conversation:
    """Has three turns."""

    name = "conversation"

    def sample(self, n, rng):
        return [rl.Task(str(rng.randrange(10))) for _ in range(n)]

    async def rollout(self, task, policy):
        messages = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"{task.prompt}{turn}"})
            messages.append((await policy.chat(messages)).message)
        return {"threes": float(messages[-1]["content"].count("3"))}


def roll_out(environment, policy, **options):
    config = rl.RolloutWorkerConfig(
        curriculum_config=rl.CurriculumConfig(lessons=[rl.Lesson("only", environment)]),
        rollout=rl.RolloutConfig(**{"prompts": 3, "group_size": 4, "max_tokens": 5} | options),
        output_dir=None,
        summary=False,
    )
    worker = rl.RolloutWorker(config, policy=policy, hooks=[])
    steps = []

    class Rollouts(hl.Callback):
        def on_rollout_end(self, loop, rollout_step, rollouts):
            steps.append(rollouts)

    worker.callbacks.add(Rollouts())
    worker.run(max_steps=1)
    return steps[0], worker.faults


class Copying:
    """Answers in one turn."""

    name = "copying"

    def sample(self, n, rng):
        return [rl.Task(f"{rng.randrange(10)}>") for _ in range(n)]

    def score(self, task, completion):
        return {"threes": float(completion.count("3"))}


@pytest.mark.parametrize("environment", [Copying(), Conversation()], ids=["single", "episodes"])
def test_answer_that_cannot_be_right_costs_only_its_own_rollout(serve, connect, environment):
    server = serve("vllm", TorchModel(CHAT_MODEL, CHAT_TOKENIZER))
    server.engine.faults = iter(["garbage", "lengths"])
    rollouts, faults = roll_out(environment, connect(server, tokenizer=CHAT_TOKENIZER))
    assert len({each.episode for each in rollouts}) == 10
    assert faults["policy"] == 2


def test_conversation_keeps_the_tokens_that_were_sampled(serve, connect):
    server = serve("sglang", TorchModel(CHAT_MODEL, CHAT_TOKENIZER))
    rollouts, _ = roll_out(Conversation(), connect(server, tokenizer=CHAT_TOKENIZER))
    assert any(rollout.turns > 1 and 0 in rollout.completion.mask for rollout in rollouts)
    for rollout in rollouts:
        made = rollout.completion
        own = own_logprobs(CHAT_MODEL, made)
        expected = [logprob if mask else 0.0 for logprob, mask in zip(own, made.mask or own, strict=True)]
        assert made.logprobs == pytest.approx(expected, abs=1e-5)
