"""Weights on their way to inference servers, and what happens to the requests in flight."""

import asyncio
import copy
import json
from typing import Any

import pytest

pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from inference_server import InferenceServer, ServerProcess, TorchModel, distribution  # noqa: E402

import hookline as hl  # noqa: E402
from hookline import rl  # noqa: E402
from hookline._engine.errors import OptionError, RefusedError  # noqa: E402
from hookline.rl.policies import server_pool  # noqa: E402
from hookline.testing import character_tokenizer, tiny_causal_lm  # noqa: E402

torch.set_num_threads(1)
TOKENIZER = character_tokenizer("0123456789>")
OLD, NEW = tiny_causal_lm(TOKENIZER, seed=1), tiny_causal_lm(TOKENIZER, seed=2)
APIS = ["vllm", "sglang"]
PROMPT = TOKENIZER("31>")["input_ids"]
ROLLOUT = {"prompts": 4, "group_size": 8, "max_tokens": 4}
SETTINGS: dict[str, Any] = {
    "curriculum": {"lessons": [{"id": "threes", "environment": "tests-threes"}], "micro_eval_frequency": 0},
    "train": {
        "max_steps": 10,
        "learning_rate": 5e-3,
        "output_dir": None,
        "save_at_end": False,
        "summary": False,
        "strict": True,
        "seed": 0,
    },
}


@rl.register_environment("tests-threes")
class Threes(rl.Environment):
    """Rewards the share of threes in four tokens."""

    name = "tests-threes"

    def sample(self, n, rng):
        return [rl.Task(f"{rng.randrange(100)}>") for _ in range(n)]

    def score(self, task, completion):
        return {"threes": completion.count("3") / 4}


@pytest.fixture
def serve():
    """Starts servers with the old weights, which are stopped with the test."""
    made = []

    def start(api):
        made.append(InferenceServer(api, TorchModel(OLD, TOKENIZER)))
        return made[-1]

    yield start
    for server in made:
        server.stop()


@pytest.fixture
def connect(tmp_path):
    """Makes policies that write checkpoints, and are closed with the test."""
    made = []

    def make(*servers, **options):
        options = {
            "api": servers[0].api,
            "retry_seconds": 0.01,
            "patience_seconds": 60,
            "weights": "checkpoint",
            "directory": str(tmp_path / "weights"),
            "source": OLD,
        } | options
        made.append(rl.ServerPolicy([server.url for server in servers], tokenizer=TOKENIZER, **options))
        return made[-1]

    yield make
    for policy in made:
        policy.close()


def request(seed=0, **sampling):
    return rl.SampleRequest(PROMPT, rl.Sampling(**{"max_tokens": 8, "seed": seed} | sampling))


def sample(policy, *requests):
    async def together():
        return await asyncio.gather(*(policy.sample(each) for each in requests))

    return asyncio.run(together())


def assert_made_by(completion, model, version):
    with torch.no_grad():
        logits = model(torch.tensor([[*completion.prompt_ids, *completion.token_ids]])).logits[0].double()
    rows = logits[len(completion.prompt_ids) - 1 : -1].tolist()
    own = [distribution(row, 1.0, 1.0)[token] for row, token in zip(rows, completion.token_ids, strict=True)]
    assert completion.logprobs == pytest.approx(own, abs=1e-5)
    assert completion.versions == [version] * len(completion.token_ids)


@pytest.mark.parametrize(
    ("api", "order"),
    [
        ("vllm", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version", "/resume"]),
        ("sglang", ["/pause_generation", "/update_weights_from_disk", "/continue_generation"]),
    ],
)
def test_checkpoint_is_loaded_by_all_servers(serve, connect, api, order):
    servers = [serve(api), serve(api)]
    policy = connect(*servers)
    assert_made_by(sample(policy, request())[0], OLD, 0)
    for server in servers:
        server.engine.calls.clear()
    policy.load_weights(7, NEW.state_dict())
    assert [server.order() for server in servers] == [order] * 2
    for made in sample(policy, *(request(seed) for seed in range(4))):
        assert_made_by(made, NEW, 7)
    assert policy.version == 7
    assert [server.engine.version for server in servers] == ["7", "7"]


def test_checkpoints_of_the_latest_two_versions_are_kept(serve, connect, tmp_path):
    policy = connect(serve("vllm"))
    for version in (1, 2, 3):
        policy.load_weights(version, NEW.state_dict())
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == ["weights-2", "weights-3"]


@pytest.mark.parametrize("api", APIS)
def test_adapter_is_loaded_beside_the_previous_one(serve, connect, api, tmp_path):
    from peft import LoraConfig, get_peft_model

    from hookline.rl.learner.weights import weights_of

    adapted = get_peft_model(
        copy.deepcopy(OLD), LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    )
    server = serve(api)
    policy = connect(server, weights="adapter", source=adapted)
    assert policy.weights_format == "adapter"
    assert_made_by(sample(policy, request())[0], OLD, 0)
    for version in (1, 2, 3):
        policy.load_weights(version, weights_of(adapted, "adapter"))
    assert_made_by(sample(policy, request())[0], adapted, 3)
    assert [name.rpartition("-")[2] for name in server.engine.adapters] == ["2", "3"]
    assert not {"/pause", "/pause_generation"} & set(server.order())


@pytest.mark.parametrize("api", APIS)
def test_interrupted_completion_continues_with_the_new_weights(serve, connect, api):
    server = serve(api)
    policy = connect(server)
    [whole] = sample(policy, request(3, max_tokens=12))
    server.engine.hold_after = 3

    async def update():
        task = asyncio.ensure_future(policy.sample(request(3, max_tokens=12)))
        assert await asyncio.to_thread(server.engine.held.wait, 60)
        await asyncio.to_thread(policy.load_weights, 5, NEW.state_dict())
        server.let_go()
        return await task

    made = asyncio.run(update())
    assert len(whole.token_ids) > 3
    assert made.token_ids[:3] == whole.token_ids[:3]
    assert made.logprobs[:3] == pytest.approx(whole.logprobs[:3])
    assert made.versions == [0] * 3 + [5] * (len(made.token_ids) - 3)
    assert len(made.token_ids) > 3
    rest = rl.Completion(
        "", made.token_ids[3:], made.logprobs[3:], prompt_ids=[*PROMPT, *made.token_ids[:3]], versions=made.versions[3:]
    )
    assert_made_by(rest, NEW, 5)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("in_flight", ["keep", "wait"])
def test_completion_in_flight_is_kept_or_waited_for(serve, connect, api, in_flight):
    server = serve(api)
    policy = connect(server, in_flight=in_flight)
    server.engine.hold_after = 3
    names = ("/collective_rpc", "/update_weights_from_disk")

    async def update():
        task = asyncio.ensure_future(policy.sample(request(3, max_tokens=12)))
        assert await asyncio.to_thread(server.engine.held.wait, 60)
        loading = asyncio.ensure_future(asyncio.to_thread(policy.load_weights, 5, NEW.state_dict()))
        if in_flight == "keep":
            await loading
            server.let_go()
        else:
            while not server.calls("/pause", *names):
                await asyncio.sleep(0)
            server.let_go()
        made = await task
        await loading
        return made

    made = asyncio.run(update())
    paths = [path for path, _ in server.engine.calls]
    assert paths.count("/generate") + paths.count("/inference/v1/generate") == 1  # nothing was sent again
    assert set(made.versions) == {0}
    if in_flight == "wait":
        assert_made_by(made, OLD, 0)
    assert server.engine.version == "5"


@pytest.mark.parametrize("api", APIS)
def test_server_that_was_restarted_gets_the_weights_before_it_serves(serve, connect, api):
    server, other = serve(api), serve(api)
    policy = connect(server, other)
    policy.load_weights(4, NEW.state_dict())
    for each in (server, other):  # as after a restart
        each.engine.model, each.engine.version = TorchModel(OLD, TOKENIZER), "default"
        each.engine.faults = iter(["503"])
    for made in sample(policy, *(request(seed) for seed in range(8))):
        assert_made_by(made, NEW, 4)
    assert server.engine.version == other.engine.version == "4"


@pytest.mark.parametrize("path", ["/pause", "/collective_rpc", "/reset_prefix_cache", "/resume"])
def test_server_that_missed_an_update_gets_it_before_it_serves(serve, connect, path):
    server, away = serve("vllm"), serve("vllm")
    policy = connect(server, away)
    sample(policy, request())
    away.engine.answers[path] = 503
    policy.load_weights(1, NEW.state_dict())
    served = away.engine.served
    assert_made_by(sample(policy, request())[0], NEW, 1)
    del away.engine.answers[path]
    while away.engine.served == served:
        for made in sample(policy, *(request(seed) for seed in range(4))):
            assert_made_by(made, NEW, 1)
    assert away.engine.version == "1"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("code", "error"), [(400, RefusedError), (500, rl.PolicyError)])
def test_weights_that_no_server_takes_are_an_error_and_the_previous_ones_stay(serve, connect, api, code, error):
    server = serve(api)
    policy = connect(server)
    policy.load_weights(1, NEW.state_dict())
    path = "/collective_rpc" if api == "vllm" else "/update_weights_from_disk"
    server.engine.answers[path] = code
    with pytest.raises(error, match=f"{path} answers {code}"):
        policy.load_weights(2, OLD.state_dict())
    server.engine.answers.clear()
    assert policy.version == 1
    assert_made_by(sample(policy, request())[0], NEW, 1)


def test_only_server_that_is_away_during_an_update_gets_it_later(serve, connect, caplog):
    server = serve("vllm")
    policy = connect(server)
    server.engine.answers["/pause"] = 503
    policy.load_weights(1, NEW.state_dict())
    assert "gets no requests until it answers again" in caplog.text
    server.engine.answers.clear()
    assert_made_by(sample(policy, request())[0], NEW, 1)


def test_server_without_the_endpoints_for_weights_is_an_error_that_names_its_options(serve, connect):
    policy = connect(serve("vllm"))
    policy.load_weights(1, NEW.state_dict())
    other = connect(serve("sglang"), api="vllm")
    with pytest.raises(RefusedError, match="/pause answers 404 .*VLLM_SERVER_DEV_MODE=1"):
        other.load_weights(1, NEW.state_dict())


def test_load_weights_without_a_way_is_an_error(serve, connect):
    policy = connect(serve("vllm"), weights=None)
    with pytest.raises(OptionError, match="give weights='checkpoint', 'adapter' or 'broadcast'"):
        policy.load_weights(1, NEW.state_dict())


@pytest.fixture
def start(torch_programs, monkeypatch):
    """Starts servers with other weights in processes of their own, and lets this process use gloo on loopback."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    made = []

    def start(api, port=0):
        made.append(ServerProcess(torch_programs, api, "--tiny", port=port))
        return made[-1]

    yield start
    for server in made:
        server.kill()


def test_broadcast_over_gloo_reaches_a_server_in_another_process(start, connect):
    server = start("vllm")
    policy = connect(server, weights="broadcast", backend="gloo", address="127.0.0.1", directory=None)
    for version, model in ((1, NEW), (2, OLD)):
        policy.load_weights(version, model.state_dict())
        for made in sample(policy, *(request(seed) for seed in range(2))):
            assert_made_by(made, model, version)


def test_broadcast_is_repeated_for_a_server_that_was_killed(start, connect, monkeypatch):
    monkeypatch.setattr(server_pool, "IDLE_SECONDS", 0.05)  # a fork is back sooner than any server
    server = start("sglang")
    policy = connect(server, weights="broadcast", backend="gloo", directory=None)
    policy.load_weights(1, NEW.state_dict())
    assert_made_by(sample(policy, request())[0], NEW, 1)
    server.kill()
    start("sglang", port=server.port)
    assert_made_by(sample(policy, request())[0], NEW, 1)


# Training.


@pytest.mark.parametrize(("api", "temperature"), [("vllm", 0.8), ("sglang", 1.0)])
def test_training_over_servers_learns_and_versions_advance(serve, tmp_path, api, temperature):
    servers = [serve(api), serve(api)]
    file = tmp_path / "rl.json"
    policy = {"api": api, "urls": [server.url for server in servers]}
    policy |= {"weights": "checkpoint", "directory": str(tmp_path / "weights")}
    file.write_text(json.dumps({**SETTINGS, "policy": policy, "rollout": {**ROLLOUT, "temperature": temperature}}))
    model, versions = copy.deepcopy(OLD), []

    class Versions(hl.Callback):
        def on_rollout_end(self, loop, rollout_step, rollouts):
            versions.append({each.version for each in rollouts})

    done = rl.train(str(file), model=model, tokenizer=TOKENIZER, callbacks=[Versions()])
    assert versions == [{step} for step in range(10)]
    assert [server.engine.version for server in servers] == ["10", "10"]
    assert all(server.engine.served > 100 for server in servers)
    assert done.metrics["reward/mean"] > 0.6
    for name, tensor in servers[0].engine.model.model.state_dict().items():
        assert torch.equal(tensor, model.state_dict()[name])


def test_training_with_adapters_sends_them_to_servers(serve, tmp_path):
    from peft import LoraConfig, get_peft_model

    server = serve("vllm")
    model = get_peft_model(copy.deepcopy(OLD), LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    policy = {"api": "vllm", "urls": [server.url], "weights": "adapter", "directory": str(tmp_path)}
    settings = {**SETTINGS, "policy": policy, "rollout": ROLLOUT, "train": {**SETTINGS["train"], "max_steps": 2}}
    (tmp_path / "rl.json").write_text(json.dumps(settings))
    done = rl.train(tmp_path / "rl.json", model=model, tokenizer=TOKENIZER)
    assert done.metrics["policy/version"] == 1
    assert [name.rpartition("-")[2] for name in server.engine.adapters] == ["1", "2"]
    used = {body["model"].rpartition("-")[2] for body in server.calls("/inference/v1/generate")}
    assert used == {"0", "1"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": None, "directory": None}, "the servers would keep the weights"),
        ({"executor": "ray"}, "give executor='local' to sample from servers"),
    ],
)
def test_settings_that_servers_cannot_be_used_with_are_an_error(options, message):
    servers = {"api": "vllm", "urls": ["http://localhost:1"], "weights": "checkpoint", "directory": "x"}
    policy = rl.ServerPolicyConfig(**servers | {name: value for name, value in options.items() if name in servers})
    curriculum = rl.CurriculumConfig(lessons=[rl.Lesson("threes", "tests-threes")])
    with pytest.raises(OptionError, match=message):
        rl.RLConfig(
            curriculum=curriculum,
            policy=policy,
            train=hl.TrainerConfig(max_steps=1),
            executor=options.get("executor", "local"),
        )
