"""Turns that continue finished rows: the same tokens as from a whole prefill, from fewer tokens of work."""

import asyncio
import copy
import gc
import random
import weakref

import pytest
import torch
from test_batching import alone, assert_same, passes
from test_hf_policy import ALPHABET, bloom, gpt2, llama, made, mistral

from hookline import rl
from hookline.rl.policies import hf_batch
from hookline.rl.policies.batching import BatchedPolicy
from hookline.rl.policies.decoding import Decoder
from hookline.rl.policies.prefix_cache import PrefixCache
from hookline.rl.rollouts.episode import EpisodePolicy
from hookline.rl.rollouts.episode_runner import EpisodeJob, EpisodeRunner
from hookline.testing import character_tokenizer, chat_tokenizer, tiny_causal_lm

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer():
    return character_tokenizer(ALPHABET)


@pytest.fixture(autouse=True)
def every_saved_token_counts(monkeypatch):
    monkeypatch.setattr(hf_batch, "MIN_SAVED_TOKENS", 1)


def endless(model, tokenizer, **options):
    """A policy that writes as many tokens as it may: with fresh weights, the likeliest token often ends a turn."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.eos_token = model.generation_config.eos_token_id = None
    return rl.HFPolicy(model, tokenizer, **options)


@pytest.fixture
def policy(tokenizer):
    return endless(made(llama, tokenizer), tokenizer)


def request(ids, *, temperature=0.0, most=6, seed=0):
    return rl.SampleRequest(ids, rl.Sampling(temperature, max_tokens=most, seed=seed))


def opened(policy, *, temperature=0.0):
    batch = policy.open_batch(rl.Sampling(temperature))
    batch.callers = policy.batch_size
    return batch


def complete(batch, given):
    """The completions of requests that are admitted together."""
    assert batch.admit(list(enumerate(given))) == []
    answers = {}
    while len(batch):
        answers |= batch.advance(lambda: False)
    return [answers[index] for index in range(len(given))]


def next_prompt(completion, new=(5, 7)):
    return [*completion.prompt_ids, *completion.token_ids, *new]


# The same completions as without


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("build", [llama, gpt2, bloom, mistral], ids=lambda build: build.__name__)
def test_conversations_get_the_completions_of_whole_prompts(build, temperature, is_padded, tokenizer, monkeypatch):
    monkeypatch.setattr(hf_batch, "PASS_TOKENS", 8)
    policy = endless(made(build, tokenizer), tokenizer, batch_size=7)
    shapes, pairs = passes(policy), []

    async def converse(batched, number):
        rng = random.Random(number)
        ids = policy.encode(["".join(rng.choices("0123456789", k=rng.randrange(1, 9) if is_padded else 4))])[0]
        with batched.expect():
            for turn in range(4):
                most = rng.randrange(1, 8) if is_padded else 5
                asked = request(ids, temperature=temperature, most=most, seed=10 * number + turn)
                found = await batched.sample(asked)
                pairs.append((found, asked))
                ids = next_prompt(found, rng.choices(range(5, 12), k=rng.randrange(1, 3) if is_padded else 2))

    async def ask():
        batched = BatchedPolicy(policy)
        await asyncio.gather(*(converse(batched, number) for number in range(6)))

    asyncio.run(ask())
    processed = sum(rows * length for rows, length in shapes if length > 1)
    assert_same([found for found, _ in pairs], alone(policy, [asked for _, asked in pairs]))
    whole = sum(len(asked.prompt) for _, asked in pairs)
    if build is mistral:  # keeps the last tokens alone
        assert processed >= whole
    else:
        assert processed < 0.6 * whole


def test_prefix_is_used_by_several_branches_at_once_and_later(policy):
    batch = opened(policy, temperature=1.0)
    (first,) = complete(batch, [request([1, 5, 6, 7], temperature=1.0, most=8)])
    shapes = passes(policy)
    kept = len(first.prompt_ids) + len(first.token_ids) - 1
    branches = [
        request(next_prompt(first, new), temperature=1.0, seed=seed)
        for seed, new in enumerate([(5, 7), (5, 7), (6,), (8, 9, 5)])
    ]
    found = complete(batch, branches)
    assert shapes[0] == (3, len(branches[-1].prompt) - kept), "equal prompts once, and only what is new"
    later = request([*first.prompt_ids, *first.token_ids[:4], 9], temperature=1.0, seed=9)
    shapes.clear()
    found += complete(batch, [later])
    assert shapes[0] == (1, 1), "a branch from the middle of a turn"
    assert_same(found, alone(policy, [*branches, later]))


def test_completion_that_its_caller_modifies_does_not_change_what_is_kept(policy):
    batch = opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7])])
    first.token_ids[1] = 16 if first.token_ids[1] != 16 else 15
    again = request(next_prompt(first))
    assert_same(complete(batch, [again]), alone(policy, [again]))


# Less work


def test_only_the_tokens_that_are_new_are_processed(policy):
    shapes, batch = passes(policy), opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7, 8, 9])])
    shapes.clear()
    complete(batch, [request(next_prompt(first, (5, 6, 7)))])
    assert shapes[0] == (1, 4), "the last token of a turn was sampled, but not processed"


def test_prompts_with_little_and_much_that_is_new_are_processed_in_two_passes(policy, monkeypatch):
    batch = opened(policy)
    first = complete(batch, [request([1, number, 6, 7]) for number in range(5, 13)])
    shapes, given = passes(policy), [request(next_prompt(each)) for each in first]
    other = request([1, *range(13, 4, -1)] * 2)
    monkeypatch.setattr(hf_batch, "PASS_TOKENS", 8)
    found = complete(batch, [*given, other])
    assert shapes[0] == (8, 3)
    assert shapes[1] == (1, len(other.prompt) - 1), "it shares its first token with the others"
    assert_same(found, alone(policy, [*given, other]))


class Guide:
    """Answers every turn, three times."""

    left = 3

    def episode(self):
        return Guide()

    def reset(self, task):
        return [{"role": "system", "content": "be brief"}, {"role": "user", "content": task.prompt}]

    def step(self, message):
        self.left -= 1
        return rl.Step("and?", reward=1.0, done=not self.left)


class Shop:
    """Has a tool."""

    def price(self, item: str) -> str:
        """Return a price.

        Args:
            item: What is sold.
        """
        return f"{item} costs 4"

    @property
    def tools(self):
        return [self.price]


class Counter:
    """Samples token ids, and a branch."""

    async def rollout(self, task, policy):
        first = await policy.sample(task.prompt)
        ids = [*first.prompt_ids, *first.token_ids]
        await asyncio.gather(*(policy.sample([*ids, token]) for token in (5, 6)))
        return 1.0


SCRIPTS = {
    "chat": (Guide(), ["well", "maybe so", "no"]),
    "tools": (Shop(), ["<call>price item=tea</call>", "<call>price item=a</call>", "tea is 4"]),
    "text": (Counter(), ["two", "a", "a"]),
}


@pytest.mark.parametrize("kind", SCRIPTS)
def test_every_turn_of_an_episode_continues_the_one_before(kind, monkeypatch):
    """Chats, tools and texts: what an environment sends for its next turn begins with the tokens that were sampled."""
    environment, turns = SCRIPTS[kind]
    tokenizer = chat_tokenizer()
    policy = rl.HFPolicy(tiny_causal_lm(tokenizer), tokenizer)
    script = [[*tokenizer(turn, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for turn in turns]
    if kind == "text":  # both branches write at the same time
        written = iter([*script[0], *(token for token in script[1] for _ in range(2))])
    else:
        written = iter([token for turn in script for token in turn])

    def scripted(logits, noise, sampling):
        tokens = torch.tensor([next(written) for _ in logits])
        return tokens, logits.log_softmax(-1).gather(-1, tokens[:, None])

    monkeypatch.setattr(hf_batch, "sample_tokens", scripted)
    requests, first_passes = [], []
    prefill = Decoder.prefill

    def noted_prefill(self, copies, cached=None, columns=0):
        first_passes.append(self.length - columns)
        return prefill(self, copies, cached, columns)

    monkeypatch.setattr(Decoder, "prefill", noted_prefill)

    def make_policy(asynchronous, in_thread):
        sample = asynchronous.sample

        def noted_sample(asked):
            requests.append(asked)
            return sample(asked)

        monkeypatch.setattr(asynchronous, "sample", noted_sample)
        return EpisodePolicy(
            asynchronous,
            rl.Task("tea?"),
            sampling=rl.Sampling(max_tokens=40),
            chat_format=policy.chat_format,
            in_thread=in_thread,
        )

    runner = EpisodeRunner(policy)
    (result,) = runner.run([EpisodeJob(environment, make_policy)])
    runner.close()
    assert (result.problem, result.policy.turns) == ("", 3)
    assert list(written) == []
    lengths = [len(policy.encode([asked.prompt])[0]) for asked in requests]
    if kind == "text":
        assert first_passes == [lengths[0], 2], "the end of the first turn and a token, for both branches at once"
    else:
        grown = [
            length - before - len(turn) + 1 for before, length, turn in zip(lengths, lengths[1:], script, strict=False)
        ]
        assert first_passes == [lengths[0], *grown]
        assert max(grown) < min(lengths)


# What is kept, and for how long


def change_in_place(policy):
    optimizer = torch.optim.SGD(policy.model.parameters(), lr=0.5)
    policy.model(torch.tensor([[1, 5, 6]])).logits.square().mean().backward()
    optimizer.step()


def change_by_data(policy):
    for parameter in policy.model.parameters():
        parameter.data.mul_(1.3)


def change_by_other_tensors(policy):
    for parameter in policy.model.parameters():
        parameter.data = parameter.data * 1.3


def change_by_state_dict(policy):
    policy.model.load_state_dict({name: tensor * 1.3 for name, tensor in policy.model.state_dict().items()})


def change_by_loading(policy):
    policy.load_weights(1, {name: tensor * 1.3 for name, tensor in policy.model.state_dict().items()})


CHANGES = [change_in_place, change_by_data, change_by_other_tensors, change_by_state_dict, change_by_loading]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_of_the_weights_between_turns_drops_what_is_kept(policy, change):
    batch = opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7, 8, 9])])
    change(policy)
    shapes, given = passes(policy), request(next_prompt(first))
    found = complete(batch, [given])
    assert shapes[0] == (1, len(given.prompt))
    assert_same(found, alone(policy, [given]))
    (later,) = found
    shapes.clear()
    complete(batch, [request(next_prompt(later))])
    assert shapes[0] == (1, 3), "what is computed with the new weights is kept"


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_change_of_the_weights_within_a_turn_keeps_nothing_of_it(policy, change):
    batch = opened(policy)
    assert batch.admit([(0, request([1, 5, 6, 7, 8, 9]))]) == []
    assert batch.advance(lambda: True) == []
    change(policy)
    ((_, first),) = batch.advance(lambda: False)
    shapes, given = passes(policy), request(next_prompt(first))
    assert_same(complete(batch, [given]), alone(policy, [given]))
    assert shapes[0] == (1, len(given.prompt))


def test_version_of_the_same_weights_drops_what_is_kept(policy):
    """A learner that trains the model of the policy tells it of new weights in this way."""
    batch = opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7, 8, 9])])
    policy.load_weights(3, policy.model.state_dict())
    shapes, given = passes(policy), request(next_prompt(first))
    complete(batch, [given])
    assert shapes[0] == (1, len(given.prompt))


def test_training_mode_between_turns_changes_nothing(policy):
    batch = opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7, 8, 9])])
    policy.model.train(not policy.model.training)
    shapes, given = passes(policy), request(next_prompt(first))
    found = complete(batch, [given])
    assert shapes[0] == (1, 3), "generation always evaluates"
    assert_same(found, alone(policy, [given]))


@pytest.mark.parametrize("change", ["disable_adapters", "scale", "merge_adapter", "train"])
def test_change_of_adapters_drops_what_is_kept(change, tokenizer):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False)
    model = peft.get_peft_model(made(llama, tokenizer), config)
    policy = endless(model, tokenizer)
    batch = opened(policy)
    (first,) = complete(batch, [request([1, 5, 6, 7, 8, 9])])
    shapes, given = passes(policy), request(next_prompt(first))
    if change == "disable_adapters":
        model.base_model.disable_adapter_layers()
    elif change == "scale":
        for module in model.modules():
            if hasattr(module, "merged_adapters"):
                module.scaling["default"] *= 3
    elif change == "merge_adapter":
        model.merge_adapter()
    else:
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if "lora_B" in name).add_(0.5)
    found = complete(batch, [given])
    assert shapes[0] == (1, len(given.prompt))
    assert_same(found, alone(policy, [given]))


def test_open_rows_and_kept_ones_are_at_most_the_batch_size(policy):
    policy.batch_size = 5
    batch, rng = opened(policy), random.Random(0)
    prompts = [[1, 5 + number, 6] for number in range(8)]
    key, kept = 0, []
    for _ in range(30):
        batch.admit([(key + place, request(ids, most=rng.randrange(1, 6))) for place, ids in enumerate(prompts[:2])])
        key, prompts = key + 2, prompts[2:]
        while len(batch) and (batch.room < 2 or len(prompts) < 2):
            prompts += [next_prompt(each)[:30] for _, each in batch.advance(lambda: True)]
            assert batch._prefixes.rows + len(batch._rows) <= 5
            assert len(batch._prefixes) <= batch._prefixes.rows
            kept.append(batch._prefixes.rows)
    assert max(kept) >= 2


def test_used_prefixes_are_dropped_first_and_then_the_oldest(policy):
    cache, prompts = PrefixCache(), [[1, number, 6, 7] for number in range(5, 9)]
    decoder = policy.decoder(prompts)
    with torch.no_grad():
        decoder.prefill(1)
    cache.add(decoder, list(enumerate(prompts)))
    prefix, common = cache.find([*prompts[2], 9])
    assert (prefix.tokens, common) == (prompts[2], 4)
    cache.gather([(prefix, 0)], 4)
    assert cache.rows == 4
    for rows, left in ((3, [5, 6, 8]), (2, [6, 8]), (1, [8]), (0, [])):
        cache.shrink(rows)
        assert cache.rows == rows
        assert [tokens[1] for tokens in map(list, prompts) if cache.find(tokens)[1] == 4] == left


def test_episodes_of_a_single_turn_end_the_keeping(policy):
    policy.batch_size = 4
    batch = opened(policy)
    kept = []
    for number in range(5, 13):
        complete(batch, [request([number, 1, 6])])
        kept.append(batch._prefixes.rows)
    assert kept == [1, 2, 3, 4, 4, 0, 0, 0]


def test_nothing_is_kept_after_the_last_episode_nor_without_episodes(policy):
    batches = []
    open_batch = policy.open_batch

    def noted_open_batch(sampling):
        batches.append(open_batch(sampling))
        return batches[-1]

    policy.open_batch = noted_open_batch

    async def ask():
        batched = BatchedPolicy(policy)
        first = await batched.sample(request([1, 5, 6, 7, 8, 9]))
        await batched.sample(request(next_prompt(first)))
        with batched.expect():
            first = await batched.sample(request([1, 5, 6, 7, 8, 9]))
            await asyncio.sleep(0.01)  # the environment takes its time
            await batched.sample(request(next_prompt(first)))
            seen = [batch._prefixes.rows for batch in batches]
            ended = weakref.ref(batches[-1]._prefixes._blocks[0])
            gc.disable()  # memory of a device is not to wait for the collection of cycles
        batches.clear()
        batched._thread.submit(int).result()  # until then, the thread may have the batch of its last call
        return seen, ended()

    try:
        assert asyncio.run(ask()) == ([0, 0, 1], None)
    finally:
        gc.enable()


def test_cancelled_requests_are_not_kept_and_the_others_are(policy):
    batch = opened(policy)
    asked = [request([1, number, 6, 7, 8, 9], most=most) for number, most in ((5, 8), (6, 3))]
    assert batch.admit(list(enumerate(asked))) == []
    assert batch.advance(lambda: True) == []
    batch.drop({0})
    ((key, kept),) = batch.advance(lambda: False)
    assert (key, len(batch), len(batch._prefixes)) == (1, 0, 1)
    given = [request([1, 5, 6, 7, 8, 9, 5]), request(next_prompt(kept))]
    assert_same(complete(batch, given), alone(policy, given))


def test_failed_batch_is_not_used_again(policy):
    async def ask():
        batched = BatchedPolicy(policy)
        with batched.expect():
            first = await batched.sample(request([1, 5, 6, 7, 8, 9]))
            weight = policy.model.lm_head.weight.detach().clone()
            with torch.no_grad():
                policy.model.lm_head.weight.fill_(float("nan"))
            with pytest.raises(rl.PolicyError, match="NaN"):
                await batched.sample(request(next_prompt(first)))
            with torch.no_grad():
                policy.model.lm_head.weight.copy_(weight)
            return await batched.sample(request(next_prompt(first))), request(next_prompt(first))

    found, given = asyncio.run(ask())
    assert_same([found], alone(policy, [given]))
