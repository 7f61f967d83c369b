"""Requests that are generated together: the same completions as alone, whatever they share a batch with."""

import asyncio
import random
import threading

import pytest
import torch
from scripted_policy import ScriptedPolicy
from test_hf_policy import ALPHABET, bloom, gpt2, llama, made, mistral

from hookline import rl
from hookline._engine.errors import OptionError
from hookline.rl.policies.base import AsyncPolicy
from hookline.rl.policies.batching import JOIN_STEPS, BatchedPolicy, as_async
from hookline.testing import character_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer(ALPHABET)


@pytest.fixture(params=[llama, gpt2, mistral, bloom], ids=lambda build: build.__name__)
def model(request, tokenizer):
    return made(request.param, tokenizer)


@pytest.fixture
def policy(tokenizer):
    return rl.HFPolicy(made(llama, tokenizer), tokenizer)


def requests(count, *, temperature=1.0, top_p=1.0, most=20):
    rng = random.Random(0)
    return [
        rl.SampleRequest(
            "".join(rng.choices("0123456789", k=rng.randrange(1, 12))) + ">",
            rl.Sampling(temperature, top_p, max_tokens=rng.randrange(1, most), seed=index),
        )
        for index in range(count)
    ]


def alone(policy, given):
    return [policy.generate([each.prompt], 1, each.sampling)[0][0] for each in given]


def sampled(policy, given, *, waves=1):
    """The completions of requests that arrive in waves: each after a completion of the one before."""

    async def ask():
        batched, answers = as_async(policy), {}
        arrived = asyncio.Event()

        async def sample(index, request):
            answers[index] = await batched.sample(request)
            arrived.set()

        async with asyncio.TaskGroup() as group:
            for wave in range(waves):
                for index in range(wave, len(given), waves):
                    group.create_task(sample(index, given[index]))
                await arrived.wait()
                arrived.clear()
        return [answers[index] for index in range(len(given))]

    return asyncio.run(ask())


def assert_same(found, expected):
    assert [each.token_ids for each in found] == [each.token_ids for each in expected]
    assert [(each.text, each.finish, each.prompt_ids) for each in found] == [
        (each.text, each.finish, each.prompt_ids) for each in expected
    ]
    for one, other in zip(found, expected, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.sampled_logprobs == pytest.approx(other.sampled_logprobs, abs=1e-4)


@pytest.mark.parametrize("waves", [1, 5])
@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (1.3, 0.9), (0.0, 1.0)])
def test_requests_get_the_completions_they_would_get_alone(model, tokenizer, waves, temperature, top_p):
    policy, given = rl.HFPolicy(model, tokenizer, batch_size=7), requests(25, temperature=temperature, top_p=top_p)
    assert_same(sampled(policy, given, waves=waves), alone(policy, given))


def passes(policy):
    """The shapes of the model's inputs, in order, as they come."""
    shapes: list[tuple[int, int]] = []
    policy.model.register_forward_pre_hook(
        lambda module, args, options: shapes.append(tuple(options["input_ids"].shape)), with_kwargs=True
    )
    return shapes


def test_waiting_requests_take_the_place_of_finished_ones(policy):
    policy.batch_size = 4
    shapes, given = passes(policy), requests(40)
    found = sampled(policy, given)
    count = len(shapes)
    assert max(rows for rows, _ in shapes) == 4
    tokens = sum(len(each.token_ids) for each in found)
    prompts = sum(length > 1 for _, length in shapes[:count])
    assert count - prompts < tokens / 3, "almost always, four rows are generated at the same time"
    assert_same(found, alone(policy, given))


def test_equal_prompts_are_processed_once(policy):
    shapes = []
    policy.model.register_forward_pre_hook(
        lambda *called: shapes.append(called[2]["input_ids"].shape), with_kwargs=True
    )
    given = [rl.SampleRequest("12>", rl.Sampling(max_tokens=4, seed=seed)) for seed in range(6)]
    found = sampled(policy, given)
    assert shapes[0] == (1, 4)
    assert shapes[1][0] == 6
    assert len({tuple(each.token_ids) for each in found}) > 1


def test_requests_of_different_temperatures_are_generated_one_after_the_other(policy):
    given = requests(6) + requests(6, temperature=0.0) + requests(6, temperature=0.5)
    mixed = [given[index] for index in random.Random(1).sample(range(18), 18)]
    assert_same(sampled(policy, mixed), alone(policy, mixed))


def test_token_ids_are_a_prompt(policy):
    (ids,) = policy.encode(["12+3="])
    sampling = rl.Sampling(max_tokens=8, seed=3)
    (found,) = sampled(policy, [rl.SampleRequest(ids, sampling)])
    assert_same([found], alone(policy, [rl.SampleRequest("12+3=", sampling)]))
    assert_same(policy.generate([ids, "12+3="], 1, sampling)[0], policy.generate(["12+3="], 1, sampling)[0])


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        (list(range(100)), "has 100 tokens, the model 48 positions"),
        ([1, 900], "has tokens from 1 to 900, the model from 0 to 17"),
        ([1, -1], "has tokens from -1 to 1"),
        ([], "is an empty list"),
        ([1.5], "contains 1.5"),
        ([{"role": "user"}], "messages become ids with ChatFormat"),
        (7, "is int: give texts or lists of token ids"),
    ],
)
def test_request_that_is_not_accepted_fails_alone(policy, prompt, problem):
    async def ask():
        batched = as_async(policy)
        good = [batched.sample(request) for request in requests(3)]
        bad = batched.sample(rl.SampleRequest(prompt))
        return await asyncio.gather(*good, bad, return_exceptions=True)

    *good, error = asyncio.run(ask())
    assert isinstance(error, OptionError)
    assert problem in str(error)
    assert_same(good, alone(policy, requests(3)))
    with pytest.raises(OptionError, match=r"prompts\[1\]"):
        policy.generate(["1", prompt], 1, rl.Sampling())


def test_cancelled_requests_leave_the_batch(policy):
    """One row is generated to its end; the rows of cancelled requests are no longer part of the batch by then."""
    shapes = passes(policy)
    last = rl.SampleRequest("1>", rl.Sampling(max_tokens=40, seed=5))

    async def ask():
        batched = as_async(policy)
        first = asyncio.create_task(batched.sample(rl.SampleRequest("3>", rl.Sampling(max_tokens=2, seed=0))))
        kept = asyncio.create_task(batched.sample(last))
        others = [asyncio.create_task(batched.sample(last)) for _ in range(8)]
        await first
        for other in others:
            other.cancel()
        return await kept, await asyncio.gather(*others, return_exceptions=True)

    found, cancelled = asyncio.run(ask())
    assert_same([found], alone(policy, [last]))
    assert {type(each) for each in cancelled} == {asyncio.CancelledError}
    assert [rows for rows, _ in shapes[:5]] == [2, 10, 1, 1, 1], "two prompts, and the first token of ten requests"


def test_failing_batch_fails_its_requests_and_later_ones_are_generated(policy):
    async def ask():
        batched = as_async(policy)
        with torch.no_grad():
            weight = policy.model.lm_head.weight.clone()
            policy.model.lm_head.weight.fill_(float("nan"))
        failed = await asyncio.gather(*map(batched.sample, requests(3)), return_exceptions=True)
        with torch.no_grad():
            policy.model.lm_head.weight.copy_(weight)
        return failed, await asyncio.gather(*map(batched.sample, requests(3)))

    failed, made_later = asyncio.run(ask())
    assert {type(each) for each in failed} == {rl.PolicyError}
    assert len(set(map(id, failed))) == 3
    assert_same(made_later, alone(policy, requests(3)))


def test_images_are_refused(policy):
    with pytest.raises(OptionError, match="the prompt has images"):
        asyncio.run(as_async(policy).sample(rl.SampleRequest("1>", images=[b"png"])))


# Policies that only have generate()


class Once(ScriptedPolicy):
    """Writes one of the digits of the prompt, and notes on which threads."""

    def __init__(self):
        super().__init__(lambda prompt, rng: rng.choice(prompt))
        self.threads: set[str] = set()

    def generate(self, prompts, n, sampling):
        self.threads.add(threading.current_thread().name)
        return super().generate(prompts, n, sampling)


def test_policy_with_generate_alone_gets_one_request_at_a_time_in_a_thread():
    policy, given = Once(), requests(5)
    assert [each.text for each in sampled(policy, given)] == [each.text for each in alone(Once(), given)]
    assert policy.threads == {"hookline-policy_0"}
    assert [len(prompts) for prompts, _, _ in policy.requests] == [1] * 5


@pytest.mark.parametrize("sampling", [rl.Sampling(max_tokens=4), rl.Sampling(0.0, max_tokens=4, seed=1)])
def test_requests_without_a_seed_or_without_chance_share_a_call(sampling):
    policy = Once()
    sampled(policy, [rl.SampleRequest(prompt, sampling) for prompt in "12345"])
    assert [prompts for prompts, _, _ in policy.requests] == [["1", "2", "3", "4", "5"]]


def test_asynchronous_policy_is_used_as_it_is():
    class Native:
        version = 3

        async def sample(self, request):
            return rl.Completion("done")

        def load_weights(self, version, weights):
            self.version = version

    native = Native()
    assert isinstance(native, AsyncPolicy)
    assert as_async(native) is native
    assert not isinstance(Once(), AsyncPolicy)


def test_batched_policy_passes_on_version_weights_and_context_length(policy):
    batched = BatchedPolicy(policy)
    batched.load_weights(7, policy.model.state_dict())
    assert (batched.version, policy.version, batched.context_length) == (7, 7, 48)
    assert BatchedPolicy(Once()).context_length is None


def test_batched_policy_that_is_closed_refuses_requests(policy):
    batched = BatchedPolicy(policy)
    batched.close()
    with pytest.raises(rl.PolicyError, match="closed"):
        asyncio.run(batched.sample(requests(1)[0]))


def test_single_request_joins_a_large_batch_after_a_while():
    """A join copies the cache, so one request waits for company, but not for long."""
    endless = character_tokenizer(ALPHABET)
    model = made(llama, endless)
    endless.eos_token = model.generation_config.eos_token_id = None
    policy = rl.HFPolicy(model, endless)
    shapes = passes(policy)

    async def ask():
        batched = as_async(policy)
        lengths = [1, *[40] * 20]
        first, *others = [
            asyncio.create_task(batched.sample(rl.SampleRequest("1>", rl.Sampling(max_tokens=length, seed=length))))
            for length in lengths
        ]
        await first
        await batched.sample(rl.SampleRequest("2>", rl.Sampling(max_tokens=1)))
        return [each.done() for each in others]

    assert asyncio.run(ask()) == [False] * 20
    assert shapes.index((1, 3), 1) == JOIN_STEPS
