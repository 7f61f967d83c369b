"""Samples in the page, read as a person reads them: chats, groups, tokens, search, links, annotations, export."""

import base64
import io
import json
import random
import re
import threading

import pytest
from page_looks import has_sideways_scroll
from page_runs import HOSTILE, append, live_run, sample

import hookline as hl
from hookline.store.annotations import read_annotations

expect = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright").expect
Picture = pytest.importorskip("PIL.Image")

WORDS = "Let us add the numbers and see"
HEBREW = "שלום"


def picture():
    file = io.BytesIO()
    Picture.new("RGB", (8, 8), "red").save(file, "png")
    return {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"},
    }


def conversation(step, answer, text):
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    return {
        "step": step,
        "prompt": [
            {"role": "system", "content": "You are a *careful* calculator."},
            {"role": "user", "content": [{"type": "text", "text": "What is $1+2$?"}, picture()]},
        ],
        "completion": [
            {"role": "assistant", "content": "<think>The tool knows.</think>", "tool_calls": [call]},
            {"role": "tool", "name": "add", "content": '{"sum": 3}'},
            {"role": "tool", "name": "shell", "content": "\x1b[31mred\x1b[0m plain"},
            {"role": "assistant", "content": text},
        ],
        "answer": answer,
        "group": f"g{step}",
        "lesson": "sums",
        "finish": "stop",
        "version": step,
        "length": 40 + step,
    }


@pytest.fixture
def agent(root):
    """A run with two groups of two conversations, and a plain sample."""
    with hl.run("agent", root=root, project="p", summary=False, console=False) as run:
        for step in (1, 2):
            right = conversation(step, "3", f"{WORDS} that it is 3\n\n```python\nreturn 1 + 2\n```\n\n{HEBREW}\n\n你好")
            texts = WORDS.split(" ")
            columns = {"logprobs": [-0.1 - at for at in range(len(texts))], "entropy": [1.0] * len(texts)}
            tokens = hl.Tokens([f"{word} " for word in texts], ids=list(range(len(texts))), **columns)
            run.log_samples(
                [
                    right | {"total": 1.0, "advantage": 0.7, "rewards": {"correct": 1.0}, "tokens": tokens},
                    conversation(step, "4", f"{WORDS} it is 4") | {"total": 0.0, "advantage": -0.7},
                ]
            )
        run.log_samples(
            [{"step": 3, "prompt": "a **plain** one", "completion": "<reasoning>hm</reasoning>It is blue."}]
        )
    [info] = hl.runs(root)
    return info


def choose(page, place):
    page.locator(".sample-row").nth(place).click()
    expect(page.locator(".sample-row").nth(place)).to_have_attribute("aria-selected", "true")


def test_conversation_is_shown_with_roles_calls_results_and_images(agent, show):
    page = show("rollouts?order=-reward")
    expect(page.locator(".prompt .message header")).to_have_text(["system", "user"])
    expect(page.locator(".completion .message header b")).to_have_text(["assistant", "tool", "tool", "assistant"])
    expect(page.locator(".prompt em")).to_have_text("careful")
    expect(page.locator(".prompt .katex")).to_be_visible()
    expect(page.locator(".prompt img")).to_have_js_property("naturalWidth", 8)
    call = page.locator(".tool-call")
    expect(call.locator("summary")).to_contain_text('add{"a":1,"b":2}')
    expect(call.locator("pre")).to_be_hidden()
    call.locator("summary").click()
    expect(call.locator("pre")).to_have_text(re.compile(r'"a": 1,\s+"b": 2'))
    expect(page.locator('.message[data-role="tool"] pre').first).to_have_text(re.compile(r'"sum": 3'))
    expect(page.locator(".ansi-red")).to_have_text("red")
    expect(page.locator(".completion .hljs-keyword")).to_have_text("return")
    right_to_left = page.get_by_text(HEBREW, exact=True)
    expect(right_to_left).to_have_css("direction", "rtl")
    expect(page.locator(".completion .message").last).to_contain_text("你好")


def test_reasoning_is_folded_and_raw_text_is_a_keystroke_away(agent, show):
    page = show("rollouts")
    choose(page, 0)
    expect(page.locator(".completion .prose").last).to_have_text("It is blue.")
    expect(page.locator(".prompt strong")).to_have_text("plain")
    folded = page.locator(".completion details.reasoning")
    expect(folded.locator(".prose")).to_be_hidden()
    folded.locator("summary").click()
    expect(folded.locator(".prose")).to_have_text("hm")
    page.keyboard.press("r")
    expect(page.locator(".completion pre.raw")).to_have_text("<reasoning>hm</reasoning>It is blue.")
    page.reload()
    expect(page.locator(".prompt pre.raw")).to_have_text("a **plain** one")


def test_group_has_the_answer_first_and_marks_the_first_difference(agent, show):
    page = show("rollouts?order=-reward")
    cards = page.locator(".card")
    expect(cards.locator(".card-answer")).to_have_text(["3", "4"])
    expect(cards.locator(".advantage")).to_have_text(["+0.700", "\u22120.700"])
    expect(cards.first.locator(".card-facts").first).to_have_text("correct 1")
    expect(cards.nth(1).locator(".card-facts")).to_contain_text("finish stop")
    expect(cards.nth(1).locator("mark.differs")).to_have_text("it")
    page.keyboard.press("]")
    expect(page.locator(".card[aria-current] .card-answer")).to_have_text("4")
    page.get_by_role("button", name="Read", exact=True).click()
    expect(page.locator(".card[aria-current] .card-answer")).to_have_text("3")
    page.keyboard.press("o")
    expect(cards).to_have_count(4)
    page.keyboard.press("g")
    expect(cards).to_have_count(2)


def test_list_shows_the_question_of_a_chat_and_the_answer_without_reasoning_and_colours(agent, root, show):
    with hl.run("plain", root=root, project="p", summary=False, console=False) as run:
        for completion in ("<think>one line</think>It is red.", "a\n\x1b[32mgreen\x1b[0m", "<think>cut off"):
            run.log_samples([{"step": 1, "prompt": "which?", "completion": completion, "group": "g"}])
    [plain] = [info.id for info in hl.runs(root) if info.name == "plain"]
    page = show(f"rollouts?run={plain}")
    answers = page.locator(".sample-row .sample-text em")
    expect(answers).to_have_text(["<think>cut off", "green", "It is red."])
    expect(page.locator(".card-answer")).to_have_text(["It is red.", "green", "<think>cut off"])
    page.goto(f"{page.url.split('#')[0]}#/rollouts?run={agent.id}")
    expect(page.locator(".sample-row .sample-text > span").last).to_have_text("What is $1+2$?")


def test_tokens_are_coloured_and_explained_by_pointer_and_keyboard(agent, show):
    page = show("rollouts?order=-reward")
    expect(page.locator(".sample-row").first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("t")
    tokens = page.locator(".token")
    expect(tokens).to_have_count(len(WORDS.split(" ")))
    assert "".join(tokens.all_text_contents()).strip() == WORDS
    expect(tokens.last).to_have_attribute("style", "--share: 100%;")
    tokens.nth(2).hover()
    expect(page.locator(".token-values")).to_contain_text("\u22122.100")
    expect(page.locator(".token-values")).to_contain_text("entropy1")
    page.locator(".token-texts").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".token-values")).to_contain_text('"the "')
    page.get_by_label("colour by").select_option("entropy")
    expect(page.locator(".token-legend")).to_contain_text("uncertain tokens stand out")
    page.reload()
    expect(page.get_by_label("colour by")).to_have_value("entropy")
    page.keyboard.press("t")
    expect(page.locator(".token")).to_have_count(0)


def test_sample_names_the_steps_that_learnt_from_it_and_tokens_have_their_columns(root, show):
    with hl.run("used", root=root, project="p", summary=False, console=False) as run:
        tokens = hl.Tokens(["a ", "b"], logprobs=[-1.0, -2.0])
        facts = {"version": 3, "last_version": 4, "prompt_length": 7, "timings": {"generate": 0.25}}
        run.log_samples([{"prompt": "p", "completion": "a b", "tokens": tokens, "rollout": "0-1", **facts}])
        run.recorder.sample_use(["0-1"], 5)
        run.recorder.sample_use(["0-1"], 6, tokens={"0-1": hl.Tokens(ratio=[1.5, 0.5], entropy=[2.0, 1.0])})
    page = show("rollouts?tokens=ratio")
    facts = page.locator(".facts").first
    expect(facts).to_contain_text("learnt from in steps 5, 6")
    expect(facts).to_contain_text("version3 to 4")
    expect(facts).to_contain_text("generate time250 ms")
    choices = page.get_by_label("colour by").locator("option")
    expect(choices).to_have_text(["log-probability", "entropy", "ratio"])
    expect(page.locator(".token").first).to_have_attribute("data-sign", "plus")
    expect(page.locator(".token").last).to_have_attribute("data-sign", "minus")


def test_search_marks_matches_and_filters_are_kept_in_the_address(agent, show):
    page = show("rollouts")
    page.get_by_label("Find in prompts and completions").fill("NUMBERS AND")
    expect(page.locator(".sample-row")).to_have_count(4)
    expect(page.locator(".completion mark.found")).to_have_text("numbers and")
    page.get_by_text("More filters").click()
    page.get_by_label("version from").fill("2")
    expect(page.locator(".sample-row")).to_have_count(2)
    page.get_by_label("role").select_option("tool")
    expect(page).to_have_url(re.compile("role=tool"))
    page.reload()
    expect(page.locator(".sample-row")).to_have_count(2)
    expect(page.get_by_label("version from")).to_have_value("2")
    page.go_back()
    expect(page.get_by_label("role")).to_have_value("")


def test_match_in_folded_reasoning_opens_it(agent, show):
    page = show("rollouts?text=tool%20knows")
    expect(page.locator("details.reasoning mark.found").first).to_be_visible()


def test_link_opens_the_same_sample_after_a_restart(agent, root, show, serve, page):
    show("rollouts?order=reward")
    expect(page.locator(".sample-row").first).to_have_attribute("aria-selected", "true")
    link = page.get_by_role("link", name="Link", exact=True).get_attribute("href")
    page.goto("about:blank")
    page.goto(f"{serve(root).url}{link}")
    expect(page.locator(".facts").first).to_contain_text("answer4")
    expect(page.locator(".card[aria-current] .card-answer")).to_have_text("4")


def test_link_to_a_sample_that_is_gone_says_so(agent, show):
    page = show(f"rollouts?run={agent.id}&sample=main-0-0")
    expect(page.get_by_role("alert").filter(has_text="There is no sample")).to_be_visible()
    expect(page.locator(".sample-row")).to_have_count(5)


def test_sample_is_annotated_by_keyboard_and_found_by_its_label(agent, show):
    page = show("rollouts")
    choose(page, 1)
    # The page shows a change before the server has it: the response of the note must not be taken for this one.
    with page.expect_response(lambda answer: "annotate" in answer.url):
        page.keyboard.press("y")
    expect(page.locator(".sample-row .label")).to_have_text("good")
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "true")
    page.keyboard.press("m")
    page.get_by_label("Note").fill("well <b>done</b>")
    with page.expect_response(lambda answer: "annotate" in answer.url):
        page.get_by_label("Note").blur()
    [noted] = read_annotations(agent.directory)[0].values()
    assert (noted.label, noted.note) == ("good", "well <b>done</b>")
    page.get_by_text("More filters").click()
    page.get_by_label("annotation").select_option("good")
    expect(page.locator(".sample-row")).to_have_count(1)
    with page.expect_response(lambda answer: "annotate" in answer.url):
        page.get_by_role("button", name="Good").click()
    expect(page.get_by_role("button", name="Good")).to_have_attribute("aria-pressed", "false")


def test_samples_are_exported_as_preferences(agent, show):
    page = show("rollouts")
    expect(page.locator(".sample-row")).to_have_count(5)
    page.locator(".export summary").click()
    with page.expect_download() as saved:
        page.get_by_role("button", name="Preferences").click()
    with open(saved.value.path()) as file:  # noqa: PTH123 - the browser's own file
        rows = [json.loads(line) for line in file]
    assert saved.value.suggested_filename == "preference.jsonl"
    assert [row["rejected"][-1]["content"] for row in rows] == [f"{WORDS} it is 4"] * 2


def test_list_and_sample_are_read_by_keyboard(agent, show):
    page = show("rollouts")
    expect(page.locator(".sample-row").first).to_have_attribute("aria-selected", "true")
    page.locator(".samples").focus()
    page.keyboard.press("ArrowDown")
    expect(page.locator(".sample-row").nth(1)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    expect(page.locator(".sample-detail")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator(".sample-row").first).to_have_attribute("aria-selected", "true")


ATTACKS = [
    HOSTILE,
    "[x](javascript:window.hacked=1) <javascript:window.hacked=1> [y](JaVaScRiPt&colon;window.hacked=1)",
    "![x](http://127.0.0.1:9/x.png) [ref]\n\n[ref]: javascript:window.hacked=1",
    r"$\href{javascript:window.hacked=1}{x}$ $\includegraphics{http://127.0.0.1:9/x}$ $\htmlStyle{color:red}{x}$",
    r"$\def\a{\a\a}\a$ $\rule{99999em}{99999em}$ $" + "{" * 2000 + "}" * 2000 + "$",
    "> " * 5000 + "deep " + "- " * 3000 + "[" * 5000,
    "```html\n<script>window.hacked = 1</script>\n```\n\n```js\n" + HOSTILE + "\n```",
    "| a |\n|---|\n| " + HOSTILE + " |\n\n<style>*{display:none}</style>",
]


def test_hostile_text_in_messages_stays_harmless(root, show):
    with hl.run("hostile", root=root, summary=False, console=False) as run:
        for step, text in enumerate(ATTACKS):
            call = {"function": {"name": text[:200], "arguments": text}}
            messages = [{"role": text[:200], "content": text, "tool_calls": [call], "reasoning": text, text[:50]: text}]
            part = {"type": "image_url", "image_url": {"url": "javascript:window.hacked=1"}}
            prompt = [{"role": "user", "content": [part, {"type": "image", "media": {"blob": HOSTILE}}]}]
            run.log_samples([{"step": step, "prompt": prompt, "completion": messages, "total": 1.0}])
    page = show("rollouts?order=step")
    for place in range(len(ATTACKS)):
        choose(page, place)
        expect(page.locator(".completion .tool-call")).to_have_count(1)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#view script, #view style, #view iframe, .completion img").count() == 0
    links = page.locator(".sample-detail .message a").evaluate_all("links => links.map(link => link.protocol)")
    assert set(links) <= {"http:", "https:", ":"}


def test_latest_samples_are_shown_while_the_others_are_still_read(root, show, page):
    long, directory = "x" * 600_000, live_run(root)
    append(directory, *[sample(step, long, 0.0, prompt="long") for step in range(30)])
    append(directory, *[sample(step, f"answer {step}", 1.0, prompt="short") for step in range(30, 90)])
    held, is_free = [], threading.Event()
    page.route("**/api/samples/choices*", lambda route: route.continue_() if is_free.is_set() else held.append(route))
    show("rollouts")
    rows = page.locator(".sample-row")
    expect(rows).to_have_count(40)
    expect(rows.first).to_contain_text("answer 89")
    expect(page.locator(".search-note")).to_contain_text("still being read")
    expect(page.locator(".completion")).to_contain_text("answer 89")
    is_free.set()
    for route in held:
        route.continue_()
    expect(page.locator(".count-line")).to_have_text("90 samples")
    expect(page.locator(".search-note")).to_have_text("")
    expect(page.locator(".completion")).to_contain_text("answer 89")


def test_terminal_colours_of_a_prompt_are_left_out_of_the_list(root, show):
    with hl.run("agent", root=root, project="p", summary=False, console=False) as run:
        run.log_samples([{"prompt": "\x1b[31mred\x1b[0m", "completion": "yes", "step": 1}])
    expect(show("rollouts").locator(".sample-text span")).to_have_text("red")


def test_reader_fits_a_phone(agent, show, page):
    page.set_viewport_size({"width": 390, "height": 844})
    show("rollouts?order=-reward&tokens=logprobs")
    expect(page.locator(".token").first).to_be_visible()
    expect(page.locator(".card")).to_have_count(2)
    assert not has_sideways_scroll(page)


def test_text_of_random_words_and_marks_is_never_lost_between_elements(root, show):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    drawn = random.Random(seed)
    words = ["one", "two *three*", "`four`", "**five** six", "\n\n", "<think>", "</think>", "$x$", "_", "好"]
    texts = [" ".join(drawn.choices(words, k=30)) + " needle" for _ in range(5)]
    with hl.run("random", root=root, summary=False, console=False) as run:
        run.log_samples([{"completion": text, "total": 1.0} for text in texts])
    page = show("rollouts?text=needle&order=step")
    for place in range(len(texts)):
        choose(page, place)
        expect(page.locator(".completion mark.found")).to_have_text("needle")
