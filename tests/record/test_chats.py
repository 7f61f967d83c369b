"""Samples whose prompts and completions are chats: recorded as messages beside their text."""

import base64
import io

import pytest

import hookline as hl
from hookline._record.blobs import read_blob
from hookline.sinks import Sample

np = pytest.importorskip("numpy")
Picture = pytest.importorskip("PIL.Image")


def picture_bytes():
    file = io.BytesIO()
    Picture.new("RGB", (4, 3), "red").save(file, "png")
    return file.getvalue()


def recorded(root, *rows):
    with hl.run("chats", root=root, summary=False, console=False) as run:
        run.log_samples(list(rows))
    return run.dir, [record for record in hl.read(run.dir) if isinstance(record, Sample)]


def test_chat_is_recorded_as_messages_with_parsed_arguments_and_as_text(tmp_path):
    prompt = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2?", "name": None}]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    completion = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "3"},
        {"role": "assistant", "content": "It is 3.", "reasoning_content": "1+2"},
    ]
    _, (sample,) = recorded(tmp_path, {"prompt": prompt, "completion": completion})
    assert (sample.prompt, sample.completion) == ("system: Be brief.\nuser: 1+2?", "\nIt is 3.")
    assert sample.prompt_messages == [prompt[0], {"role": "user", "content": "1+2?"}]
    assert sample.completion_messages[0]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert sample.completion_messages[1:] == completion[1:]


@pytest.mark.parametrize(
    ("given", "messages", "text"),
    [
        ("plain", None, "plain"),
        ([], None, "[]"),
        (["a", "b"], None, "['a', 'b']"),
        ({"role": "assistant", "content": "x"}, [{"role": "assistant", "content": "x"}], "x"),
        ([{"role": "user", "content": None}], [{"role": "user", "content": None}], ""),
        ([{"content": [{"type": "text", "text": "a"}]}], [{"content": [{"type": "text", "text": "a"}]}], "a"),
    ],
    ids=str,
)
def test_completion_is_a_chat_only_if_it_has_messages(tmp_path, given, messages, text):
    _, (sample,) = recorded(tmp_path, {"completion": given})
    assert (sample.completion_messages, sample.completion) == (messages, text)


@pytest.mark.parametrize("kind", ["object", "openai", "anthropic"])
def test_image_in_a_message_becomes_a_blob_that_the_run_refers_to(tmp_path, kind):
    content = picture_bytes()
    encoded = base64.b64encode(content).decode()
    part = {
        "object": {"type": "image", "image": Picture.open(io.BytesIO(content))},
        "openai": {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encoded}"}},
        "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded}},
    }[kind]
    directory, (sample,) = recorded(tmp_path, {"prompt": [{"role": "user", "content": [part]}], "completion": "red"})
    [shown] = sample.prompt_messages[0]["content"]
    assert (shown["type"], shown["media"]["format"]) == ("image", "png")
    assert Picture.open(io.BytesIO(read_blob(directory, shown["media"]["blob"]))).size == (4, 3)
    [blob] = hl.runs(tmp_path).sql("SELECT type, blob FROM blobs").rows()
    assert blob == {"type": "image", "blob": shown["media"]["blob"]}


def test_damaged_image_is_left_out_and_the_sample_is_recorded(tmp_path, caplog):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    _, (sample,) = recorded(tmp_path, {"prompt": [{"role": "user", "content": [part]}], "completion": "?"})
    assert "cannot be recorded" in sample.prompt_messages[0]["content"][0]["media"]["problem"]
    assert sample.completion == "?"


def test_secret_in_a_message_is_redacted(tmp_path):
    with hl.run("chats", root=tmp_path, summary=False, console=False, redact=r"s3cret") as run:
        run.log_samples([{"completion": [{"role": "assistant", "content": "the s3cret", "extra": ["s3cret"]}]}])
    (sample,) = [record for record in hl.read(run.dir) if isinstance(record, Sample)]
    assert "s3cret" not in str(sample)


@pytest.mark.parametrize(
    ("given", "known", "extra"),
    [
        ({"version": np.int64(3), "length": 7, "finish": "stop"}, (3, 7, "stop"), {}),
        (
            {"version": "v2", "length": 1.5, "finish": 0},
            (None, None, None),
            {"version": "v2", "length": 1.5, "finish": 0},
        ),
        ({"version": True, "tokens": 12}, (None, None, None), {"version": True, "tokens": 12}),
        ({"version": None, "tokens": None}, (None, None, None), {}),
    ],
)
def test_facts_of_another_type_are_kept_as_other_fields(tmp_path, given, known, extra):
    _, (sample,) = recorded(tmp_path, {"completion": "x", **given})
    assert (sample.version, sample.length, sample.finish) == known
    assert sample.extra == extra
