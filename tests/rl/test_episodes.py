"""Episodes: what environments with several turns see, and what becomes of their conversations."""

import asyncio
import random

import pytest
import torch
from scripted_policy import ScriptedChat, ScriptedPolicy, last_turn, worker

import hookline as hl
from hookline import rl
from hookline._engine.errors import OptionError
from hookline._record.blobs import read_blob
from hookline._record.reader import read
from hookline._record.records import Metrics, Sample
from hookline._record.tokens import read_tokens
from hookline.rl.environments import Lookup, RewardDataset
from hookline.rl.learner.batch import mini_batches
from hookline.rl.rollouts.rollout_maker import Made, Unscored
from hookline.testing import chat_tokenizer, tiny_causal_lm

torch.set_num_threads(1)


def ask_the_tool(prompt, rng):
    """Look up what is asked, and answer with what the tool says."""
    role, text = last_turn(prompt)
    return text if role == "tool" else f"<call>lookup key={text.rstrip('?')}</call>"


class Countdown:
    """The policy has to say a number, then the next smaller one, down to 0."""

    name = "countdown"

    def __init__(self, start=2):
        self.start = start

    def sample(self, n, rng):
        return [rl.Task(f"from {self.start}", id=f"task {index}") for index in range(n)]

    def episode(self):
        return CountdownEpisode(self.start)


class CountdownEpisode:
    def __init__(self, start):
        self.left = start

    def reset(self, task):
        return [{"role": "system", "content": "Count down."}, {"role": "user", "content": task.prompt}]

    def step(self, message):
        is_right = message["content"] == str(self.left)
        self.left -= 1
        done = self.left < 0 or not is_right
        return rl.Step(None if done else "next", reward={"right": float(is_right)}, done=done)


def count_down(prompt, rng):
    said = prompt.count("<assistant>") - 1
    start = int(prompt.partition("from ")[2].partition("<")[0])
    return str(start - said)


def test_tool_environment_results_of_tools_are_masked_and_the_answer_is_scored():
    made = worker(ScriptedChat(ask_the_tool), environment=Lookup(), rollout={"max_tokens": 40})
    rollouts = made.roll_out()
    assert len(rollouts) == 12
    for each in rollouts:
        completion, tokenizer = each.completion, made.policy.tokenizer
        observed = [token for token, own in zip(completion.token_ids, completion.mask, strict=True) if not own]
        assert tokenizer.decode(observed) == f"<tool>{each.task.expected}<eos><assistant>"
        assert (each.rewards, each.success, each.turns, completion.finish) == ({"correct": 1.0}, True, 2, "stop")
        assert [message["role"] for message in completion.messages] == ["assistant", "tool", "assistant"]
        assert all(
            value == (-0.5 if own else 0.0) for value, own in zip(completion.logprobs, completion.mask, strict=True)
        )


def test_episode_environment_rewards_of_turns_are_added_up():
    made = worker(ScriptedChat(count_down), environment=Countdown(3), rollout={"max_tokens": 8})
    rollouts = made.roll_out()
    assert {(each.turns, each.rewards["right"], each.success) for each in rollouts} == {(4, 4.0, True)}
    assert rollouts[0].turn_rewards == [{"right": 1.0}] * 4
    assert [message["content"] for message in rollouts[0].completion.messages] == [
        "3",
        "next",
        "2",
        "next",
        "1",
        "next",
        "0",
    ]


class Debate:
    """Has the conversation itself."""

    name = "debate"

    def sample(self, n, rng):
        return [rl.Task(f"{index}?") for index in range(n)]

    async def rollout(self, task, policy):
        messages = [{"role": "user", "content": task.prompt}]
        first = await policy.chat(messages)
        second = await policy.chat([*messages, first.message, {"role": "user", "content": "why?"}])
        return {"length": len(first.text) + len(second.text), "none": None}


def test_rollout_environment_returns_its_rewards():
    made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=Debate())
    assert {(each.turns, each.total) for each in made.roll_out()} == {(2, 6.0)}
    assert made.roll_out()[0].rewards == {"length": 6.0}


def test_learner_batch_leaves_out_tokens_of_the_environment():
    rollouts = worker(ScriptedChat(ask_the_tool), environment=Lookup(), rollout={"max_tokens": 40}).roll_out()
    ((batch,),) = mini_batches(rollouts, 1, pad_id=0)
    assert batch["mask"].sum(1).tolist() == [each.completion.length for each in rollouts]
    assert batch["tokens"] == batch["mask"].sum() < sum(len(each.completion.token_ids) for each in rollouts)


@pytest.mark.parametrize("kind", ["raise", "garbage", "nan"])
def test_failing_episode_costs_only_itself(kind):
    class Bad(Debate):
        async def rollout(self, task, policy):
            rewards = await super().rollout(task, policy)
            if not task.prompt.startswith("1"):
                return rewards
            if kind == "raise":
                raise ValueError("broken")
            return "garbage" if kind == "garbage" else {"length": float("nan")}

    made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=Bad())
    rollouts = made.roll_out()
    assert sorted({each.task.prompt for each in rollouts}) == ["0?", "2?"]
    assert sum(made.faults.values()) == 4


# Branches


def user(text):
    return {"role": "user", "content": text}


def conversation(have, *, write=lambda prompt, rng: rng.choice(["yes", "no", "maybe"]), **rollout):
    """The branches of one episode whose environment has a conversation as a function does."""

    class Talks:
        name = "talks"

        def sample(self, n, rng):
            return [rl.Task("start")]

        async def rollout(self, task, policy):
            reward = await have(policy)
            return 1.0 if reward is None else reward

    settings = {"prompts": 1, "group_size": 1} | rollout
    made = worker(ScriptedChat(write), environment=Talks(), rollout=settings)
    rollouts = made.roll_out()
    made.close_hooks()
    return rollouts, made


def texts(each):
    tokenizer = chat_tokenizer()
    own = each.completion
    mask = own.mask or [1] * len(own.token_ids)
    sampled = [token for token, is_own in zip(own.token_ids, mask, strict=True) if is_own]
    return tokenizer.decode(own.prompt_ids), tokenizer.decode(own.token_ids), tokenizer.decode(sampled)


def test_conversation_that_goes_back_is_forked_and_no_turn_is_in_two_branches():
    async def goes_back(policy):
        first = await policy.chat([user("a")])
        begun = [user("a"), first.message]
        await policy.chat([*begun, user("b")])
        await policy.chat([*begun, user("c")])
        await policy.chat([user("d")])

    rollouts, _ = conversation(goes_back, write=lambda prompt, rng: last_turn(prompt)[1].upper())
    assert [texts(each) for each in rollouts] == [
        ("<bos><user>a<eos><assistant>", "A<eos><user>b<eos><assistant>B<eos>", "A<eos>B<eos>"),
        ("<bos><user>a<eos><assistant>A<eos><user>c<eos><assistant>", "C<eos>", "C<eos>"),
        ("<bos><user>d<eos><assistant>", "D<eos>", "D<eos>"),
    ]
    assert [(each.id, each.parent, each.turns) for each in rollouts] == [
        ("0-0-0-0", None, 2),
        ("0-0-0-0.1", "0-0-0-0", 1),
        ("0-0-0-0.2", None, 1),
    ]
    assert {(each.episode, each.total, each.task.id) for each in rollouts} == {("0-0-0-0", 1.0, rl.Task("start").id)}
    assert [message["content"] for message in rollouts[1].task.messages] == ["a", "A", "c"]


def test_conversation_continued_twice_at_the_same_time_is_forked():
    async def at_the_same_time(policy):
        first = await policy.chat([user("a")])
        begun = [user("a"), first.message]
        await asyncio.gather(*(policy.chat([*begun, user(text)]) for text in "bcd"))

    rollouts, _ = conversation(at_the_same_time, write=lambda prompt, rng: last_turn(prompt)[1].upper())
    assert [texts(each)[2] for each in rollouts] == ["A<eos>B<eos>", "C<eos>", "D<eos>"]
    assert [each.parent for each in rollouts] == [None, "0-0-0-0", "0-0-0-0"]


def test_equal_turns_of_an_episode_differ_and_come_out_the_same_again():
    async def asks_again(policy):
        await asyncio.gather(*(policy.chat([user("a")]) for _ in range(20)))

    first, _ = conversation(asks_again, max_turns=20)
    again, _ = conversation(asks_again, max_turns=20)
    assert [texts(each) for each in first] == [texts(each) for each in again]
    assert len({texts(each)[1] for each in first}) == 3


def test_conversation_that_is_replaced_by_a_summary_begins_a_branch():
    async def compacts(policy):
        messages = [user("a long story")]
        for _ in range(3):
            reply = await policy.chat(messages)
            messages += [reply.message, user("go on")]
        await policy.chat([user(f"so far: {len(messages)} messages")])

    rollouts, _ = conversation(compacts)
    assert [(each.turns, each.parent) for each in rollouts] == [(3, None), (1, None)]
    assert texts(rollouts[1])[0] == "<bos><user>so far: 7 messages<eos><assistant>"


def test_template_that_rewrites_earlier_turns_makes_a_branch_for_each_question():
    async def three_questions(policy):
        messages = []
        for text in "abc":
            messages.append(user(text))
            messages.append((await policy.chat(messages)).message)

    class Forgets(ScriptedChat):
        def __init__(self):
            super().__init__(lambda prompt, rng: "hm. yes")
            self.tokenizer.chat_template = (
                "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' and not loop.last %}"
                "{{ m.content.removeprefix('hm. ') }}{% else %}{{ m.content }}{% endif %}<eos>{% endfor %}"
                "{% if add_generation_prompt %}<assistant>{% endif %}"
            )
            self.chat_format = rl.ChatFormat(self.tokenizer)

    class Asks(Chatter):
        async def rollout(self, task, policy):
            await three_questions(policy)
            return 1.0

    made = worker(Forgets(), environment=Asks(), rollout={"prompts": 1, "group_size": 1})
    rollouts = made.roll_out()
    made.close_hooks()
    assert [texts(each)[0] for each in rollouts] == [
        "<user>a<eos><assistant>",
        "<user>a<eos><assistant>yes<eos><user>b<eos><assistant>",
        "<user>a<eos><assistant>yes<eos><user>b<eos><assistant>yes<eos><user>c<eos><assistant>",
    ]
    assert [each.parent for each in rollouts] == [None, "0-0-0-0", "0-0-0-0.1"]


def test_tokens_continue_a_branch_that_they_begin_with():
    tokenizer = chat_tokenizer()

    async def with_tokens(policy):
        ids = tokenizer("<bos>one", add_special_tokens=False)["input_ids"]
        first = await policy.sample(ids)
        more = [*ids, *first.token_ids, *tokenizer("two", add_special_tokens=False)["input_ids"]]
        await policy.sample(more, max_tokens=2)
        await policy.sample([*ids, *tokenizer("else", add_special_tokens=False)["input_ids"]])

    rollouts, _ = conversation(with_tokens, write=lambda prompt, rng: "yes")
    assert [texts(each) for each in rollouts] == [
        ("<bos>one", "yes<eos>twoye", "yes<eos>ye"),
        ("<bos>oneelse", "yes<eos>", "yes<eos>"),
    ]
    assert [each.completion.finish for each in rollouts] == ["length", "stop"]
    assert [each.completion.messages for each in rollouts] == [None, None]


def test_texts_begin_branches():
    async def with_texts(policy):
        completions = [await policy.sample(text) for text in ("1>", "2>")]
        assert [each.text for each in completions] == ["1", "2"]

    class Talks:
        name = "talks"

        def sample(self, n, rng):
            return [rl.Task("start")]

        async def rollout(self, task, policy):
            await with_texts(policy)
            return 1.0

    policy = ScriptedPolicy(lambda prompt, rng: prompt.removesuffix(">"))
    made = worker(policy, environment=Talks(), rollout={"prompts": 1, "group_size": 1})
    assert [each.completion.text for each in made.roll_out()] == ["1", "2"]
    made.close_hooks()


# Rewards and advantages of branches


def test_branches_share_rewards_and_advantage_and_count_once():
    class Forks(Chatter):
        async def rollout(self, task, policy):
            for index in range(int(task.prompt) + 1):
                await policy.chat([user(str(index))])
            return {"turns": float(policy.turns)} if policy.rng.random() < 0.5 else {"turns": 0.0}

        def sample(self, n, rng):
            return [rl.Task(str(index)) for index in range(n)]

    class Keeps(hl.Callback):
        def on_rollout_end(self, loop, step_idx, rollouts):
            kept.extend(rollouts)

    kept: list[rl.Rollout] = []
    made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=Forks(), callbacks=[Keeps()])
    made.run(1)
    episodes = {each.episode: each for each in kept}
    assert (len(kept), len(episodes), made.metrics["rollouts"]) == (4 * (1 + 2 + 3), 12, 24)
    for each in kept:
        other = episodes[each.episode]
        assert (each.rewards, each.total, each.advantage) == (other.rewards, other.total, other.advantage)
    assert made.metrics["reward/mean"] == pytest.approx(sum(each.total for each in episodes.values()) / 12)
    groups = {each.task.id for each in kept}
    sums = [sum(each.advantage for each in episodes.values() if each.task.id == group) for group in groups]
    assert sums == pytest.approx([0.0] * 3)
    assert len(made.curriculum.state_dict()["lessons"]["lesson"]["results"]) == 12


# Limits


def test_limit_of_turns_ends_the_episode_and_its_rewards_count():
    made = worker(ScriptedChat(count_down), environment=Countdown(9), rollout={"max_turns": 3})
    rollouts = made.roll_out()
    made.close_hooks()
    assert {(each.turns, each.total, each.completion.finish) for each in rollouts} == {(3, 3.0, "turns")}


def test_limit_of_tokens_ends_the_episode_within_it():
    made = worker(ScriptedChat(count_down), environment=Countdown(9), rollout={"max_episode_tokens": 30})
    rollouts = made.roll_out()
    made.close_hooks()
    assert {each.completion.finish for each in rollouts} == {"length"}
    assert {len(each.completion.token_ids) for each in rollouts} == {29}, "a further message has no room"


def test_turn_that_is_cut_off_is_scored_and_ends_the_episode():
    policy = ScriptedChat(lambda prompt, rng: "9" if last_turn(prompt)[1] == "from 9" else "eight")
    made = worker(policy, environment=Countdown(9), rollout={"max_tokens": 3})
    rollouts = made.roll_out()
    made.close_hooks()
    assert {(each.turns, each.total, each.completion.finish) for each in rollouts} == {(2, 1.0, "length")}


def test_context_of_the_model_is_a_limit():
    class Fills(Chatter):
        async def rollout(self, task, policy):
            policy.add_reward(0.5)
            messages = [user("1")]
            while True:
                messages += [(await policy.chat(messages)).message, user("2")]

    chat = ScriptedChat(lambda prompt, rng: "yes")
    chat.context_length = 30  # type: ignore[attr-defined]
    made = worker(chat, environment=Fills(), rollout={"prompts": 1, "group_size": 1})
    (each,) = made.roll_out()
    made.close_hooks()
    assert (each.completion.finish, each.total) == ("length", 0.5)
    assert len(each.completion.prompt_ids) + len(each.completion.token_ids) == 30, "the last turn is cut off there"


def test_environment_can_catch_the_end_of_an_episode():
    async def catches(policy):
        with pytest.raises(rl.EpisodeEnd, match="has 2 turns, which is its limit") as caught:
            while True:
                await policy.chat([user("more")])
        return {"reason": float(caught.value.reason == "turns")}

    rollouts, _ = conversation(catches, max_turns=2)
    assert [(each.rewards, each.completion.finish) for each in rollouts] == [
        ({"reason": 1.0}, "stop"),
        ({"reason": 1.0}, "turns"),
    ]


# The record


def test_samples_of_episodes_are_recorded_as_chats_with_tool_calls_turns_and_timings(tmp_path):
    made = worker(
        ScriptedChat(ask_the_tool), environment=Lookup(), rollout={"max_tokens": 40}, output_dir=str(tmp_path), hooks=[]
    )
    made.run(1)
    sample = next(each for each in read(made.dir) if isinstance(each, Sample))
    key, value = sample.prompt.rstrip("?"), sample.expected
    assert sample.prompt_messages == [{"role": "user", "content": sample.prompt}]
    called, result, answer = sample.completion_messages or []
    assert called["tool_calls"][0]["function"] == {"name": "lookup", "arguments": {"key": key}}
    assert result == {"role": "tool", "name": "lookup", "content": value, "tool_call_id": "call00000"}
    assert answer == {"role": "assistant", "content": value}
    assert (sample.completion, sample.finish, sample.total, sample.group) == (
        value,
        "stop",
        1.0,
        rl.Task(sample.prompt, value).id,
    )
    assert (sample.extra["episode"], sample.extra["turns"]) == ("0-0-0-0", 2)
    assert set(sample.timings) == {"generate", "environment", "score"}
    (row,) = [each for each in read(made.dir) if isinstance(each, Metrics) and "episodes" in each.values]
    assert row.values["episodes/turns_mean"] == 2
    assert (row.values["tools/call_frequency"], row.values["tools/failure_frequency"]) == (1.0, 0.0)
    assert row.values["episodes/finish/stop"] == 1.0


def test_tokens_of_episodes_are_recorded_with_their_mask(tmp_path):
    rollout = {"max_tokens": 40, "tokens": 1.0}
    chat = ScriptedChat(ask_the_tool)
    made = worker(chat, environment=Lookup(), rollout=rollout, output_dir=str(tmp_path), hooks=[])
    made.run(1)
    sample = next(each for each in read(made.dir) if isinstance(each, Sample))
    assert sample.tokens is not None
    table = read_tokens(read_blob(made.dir, sample.tokens["blob"]))
    observed = [token for token, own in zip(table.ids or (), table.columns["mask"], strict=True) if not own]
    assert chat.tokenizer.decode(observed) == f"<tool>{sample.expected}<eos><assistant>"
    assert sample.length == sum(table.columns["mask"]) < table.count
    assert {value for value, own in zip(table.columns["advantage"], table.columns["mask"], strict=True) if not own} == {
        0.0
    }


def test_failed_episodes_are_recorded_with_the_reason_and_without_a_reward(tmp_path):
    class Breaks(Debate):
        async def rollout(self, task, policy):
            await super().rollout(task, policy)
            raise LookupError("no such page")

    made = worker(ScriptedChat(lambda prompt, rng: "yes"), environment=Breaks(), output_dir=str(tmp_path), hooks=[])
    made.run(1)
    samples = [each for each in read(made.dir) if isinstance(each, Sample)]
    assert len(samples) == 12
    assert {(each.finish, each.total, each.extra["error"]) for each in samples} == {
        ("error", None, "raised LookupError: no such page")
    }
    assert [message["content"] for message in samples[0].completion_messages or []] == ["yes", "why?", "yes"]
    assert made.metrics["faults/debate"] == 12
    assert "reward/mean" not in made.metrics


def test_samples_without_a_reward_leave_room_for_others():
    rollouts = [rl.Rollout(rl.Task(str(index)), rl.Completion("")) for index in range(20)]
    unscored = [Unscored(each, "broken") for each in rollouts]
    shown = Made(rollouts, unscored).shown(16)
    assert [isinstance(each, Unscored) for each in shown] == [False] * 12 + [True] * 4
    assert len(Made(rollouts, unscored).shown(None)) == 40
    assert len(Made(rollouts[:3], unscored).shown(16)) == 16
    assert Made(rollouts, unscored).shown(0) == []


# Evaluations


def test_evaluation_of_a_lesson_with_episodes_is_greedy_and_leaves_rollouts_alone(tiny):
    def steps(evaluates):
        hooks = [rl.EvaluationHook(1, 6, evaluate_all_lessons=True)] if evaluates else []
        made = worker(tiny, environment=Lookup(), rollout={"max_tokens": 12}, hooks=hooks)
        made.run(2)
        return [sample["completion"] for sample in made.samples if sample["step"] and "advantage" in sample], made

    plain, _ = steps(evaluates=False)
    evaluated, made = steps(evaluates=True)
    assert [each for each in evaluated if each in plain] == plain == evaluated
    assert made.metrics["eval/lesson/examples"] == 6
    first, second = (made.evaluate_lesson("lesson", 6, rng=random.Random(1)) for _ in range(2))
    assert first == second
    made.close_hooks()


# Chats of one turn


def correct(prompts, completions, answer, **columns):
    """As for TRL: prompts and completions are lists of messages."""
    assert {message["role"] for prompt in prompts for message in prompt} == {"system", "user"}
    return [float(turn[-1]["content"] == right) for turn, right in zip(completions, answer, strict=True)]


ROWS = [
    {"prompt": [{"role": "system", "content": "Sort."}, {"role": "user", "content": f"{n}"}], "answer": str(n)[::-1]}
    for n in range(10, 99)
]


def test_prompts_that_are_chats_get_the_template_and_completions_are_messages():
    policy = ScriptedChat(lambda prompt, rng: last_turn(prompt)[1][::-1])
    made = worker(policy, environment=RewardDataset(ROWS, [correct]))
    rollouts = made.roll_out()
    each = rollouts[0]
    assert each.task.messages is not None
    shown = each.task.messages[1]["content"]
    assert policy.prompts[0] == f"<bos><system>Sort.<eos><user>{shown}<eos><assistant>"
    assert each.completion.messages == [{"role": "assistant", "content": shown[::-1]}]
    assert {(each.total, each.success, each.turns) for each in rollouts} == {(1.0, True, 1)}


def reverse(text: str) -> str:
    """Reverse a text.

    Args:
        text: The text.
    """
    return text[::-1]


def test_dataset_with_tools_calls_them_and_scores_all_messages():
    def write(prompt, rng):
        role, text = last_turn(prompt)
        return text if role == "tool" else f"<call>reverse text={text}</call>"

    made = worker(
        ScriptedChat(write), environment=RewardDataset(ROWS, [correct], tools=[reverse]), rollout={"max_tokens": 40}
    )
    rollouts = made.roll_out()
    made.close_hooks()
    assert {(each.total, each.turns) for each in rollouts} == {(1.0, 2)}
    assert [message["role"] for message in rollouts[0].completion.messages] == ["assistant", "tool", "assistant"]


def test_chat_template_kwargs_reach_the_template():
    policy = ScriptedChat(lambda prompt, rng: "yes")
    policy.tokenizer.chat_template = "{{ style }}" + policy.tokenizer.chat_template
    rollout = {"chat_template_kwargs": {"style": "short"}}
    made = worker(policy, environment=RewardDataset(ROWS, [correct]), rollout=rollout)
    made.roll_out()
    assert policy.prompts[0].startswith("short<bos>")


def test_policy_without_a_chat_format_refuses_chats():
    made = worker(environment=RewardDataset(ROWS, [correct]))
    with pytest.raises(OptionError, match="ScriptedPolicy has no chat_format"):
        made.roll_out()


def test_asynchronous_policy_generates_single_completions_too():
    class Native:
        version = 0

        async def sample(self, request):
            await asyncio.sleep(0)
            return rl.Completion(f"{request.prompt}{request.sampling.seed}", [7], [-0.1], "stop", [5])

        def load_weights(self, version, weights):
            pass

    class Echo(Chatter):
        rollout = None  # type: ignore[assignment]

        def score(self, task, completion):
            return {"echo": float(completion.startswith(task.prompt))}

    made, again = (worker(Native(), environment=Echo()).roll_out() for _ in range(2))
    assert {each.total for each in made} == {1.0}
    assert [each.completion.text for each in made] == [each.completion.text for each in again]
    assert len({each.completion.text for each in made}) == 12


# Determinism


@pytest.fixture(scope="module")
def tiny():
    """A model that writes turns of different lengths."""
    tokenizer = chat_tokenizer("0123456789?,;= lokupey")
    model = tiny_causal_lm(tokenizer, hidden_size=32)
    with torch.no_grad():
        model.lm_head.weight[tokenizer.eos_token_id] += 0.3
    return rl.HFPolicy(model, tokenizer)


class Chatter:
    """Asks three times; the episodes of a step wait for each other as a subclass says."""

    name = "chatter"

    def sample(self, n, rng):
        return [rl.Task(f"{rng.randrange(100)}?") for _ in range(n)]

    async def rollout(self, task, policy):
        messages = [{"role": "user", "content": task.prompt}]
        for question in ("1?", "2?", "3?"):
            reply = await policy.chat(messages)
            await self.wait()
            messages += [reply.message, {"role": "user", "content": question + str(policy.rng.randrange(10))}]
        return float(len(reply.completion.token_ids))

    async def wait(self):
        pass


class Reversed(Chatter):
    """Each episode waits until all that began after it are over."""

    async def rollout(self, task, policy):
        began = self.began = getattr(self, "began", 0) + 1
        reward = await super().rollout(task, policy)
        self.over = {*getattr(self, "over", ()), began}
        while len(self.over) < self.began and began + 1 not in self.over:
            await asyncio.sleep(0)
        return reward


class Threaded(Chatter):
    """Waits for other threads, so that requests come in any order."""

    async def rollout(self, task, policy):
        await policy.in_thread(lambda: None)
        return await super().rollout(task, policy)

    async def wait(self):
        await asyncio.to_thread(lambda: None)


def written(environment, policy, **rollout):
    settings = {"prompts": 4, "group_size": 4, "max_tokens": 12} | rollout
    made = worker(policy, environment=environment, rollout=settings)
    rollouts = made.roll_out()
    made.close_hooks()
    return [(each.id, each.completion.token_ids, each.total) for each in rollouts], rollouts


@pytest.mark.parametrize(
    ("environment", "rollout"),
    [(Chatter(), {"max_open_episodes": 1}), (Chatter(), {"max_open_episodes": 3}), (Reversed(), {}), (Threaded(), {})],
    ids=["one at a time", "three at a time", "reversed", "threads"],
)
def test_rollouts_do_not_depend_on_the_order_in_which_episodes_end(tiny, environment, rollout):
    expected, wanted = written(Chatter(), tiny)
    found, rollouts = written(environment, tiny, **rollout)
    assert found == expected
    assert len({each.completion.length for each in wanted}) > 3, "turns end at different times"
    for each, other in zip(rollouts, wanted, strict=True):
        assert each.completion.logprobs == pytest.approx(other.completion.logprobs, abs=1e-5)


def test_rollouts_of_the_same_seed_are_equal_to_the_last_bit(tiny):
    (first, rollouts), (second, others) = written(Chatter(), tiny), written(Chatter(), tiny)
    assert first == second
    assert [each.completion.logprobs for each in rollouts] == [each.completion.logprobs for each in others]
