"""What is known about each token of a sample: recorded in a blob, and read without a tokenizer."""

import math
import zlib

import msgspec
import pytest

import hookline as hl
from hookline._record.blobs import read_blob
from hookline._record.tokens import MAX_TOKENS, TokensError, read_tokens, token_texts
from hookline.sinks import Event, Sample

np = pytest.importorskip("numpy")


def recorded(root, tokens, **options):
    with hl.run("tokens", root=root, summary=False, console=False, **options) as run:
        run.log_samples([{"completion": "a b", "tokens": tokens}])
    records = list(hl.read(run.dir))
    (sample,) = [record for record in records if isinstance(record, Sample)]
    return (
        run.dir,
        sample,
        [record.data for record in records if isinstance(record, Event) and record.name == "media_error"],
    )


def test_tokens_of_lists_arrays_and_tensors_are_read_back(tmp_path):
    torch = pytest.importorskip("torch")
    given = hl.Tokens(
        ["a", " b"],
        ids=np.array([5, 1 << 20]),
        logprobs=torch.tensor([-0.5, -2.0], dtype=torch.bfloat16),
        entropy=[1, None],
        mask=np.array([True, False]),
        old_logprobs=np.zeros(2, "float16"),
        ref_logprobs=[-1, -2],
        custom=(0.25, math.inf),
    )
    directory, sample, _ = recorded(tmp_path, given)
    names = ["logprobs", "old_logprobs", "ref_logprobs", "entropy", "mask", "custom"]
    assert sample.tokens["data"] == {"count": 2, "columns": names}
    table = read_tokens(read_blob(directory, sample.tokens["blob"]))
    assert (table.count, table.texts, table.ids) == (2, ["a", " b"], [5, 1 << 20])
    assert table.columns["logprobs"] == [-0.5, -2.0]
    assert table.columns["entropy"][0] == 1
    assert math.isnan(table.columns["entropy"][1])
    assert (table.columns["mask"], table.columns["custom"]) == ([1, 0], [0.25, math.inf])


@pytest.mark.parametrize(
    ("texts", "columns", "reason"),
    [
        (["a", "b"], {"logprobs": [1.0]}, "different lengths: logprobs 1, texts 2"),
        (None, {}, "give the texts of the tokens, their ids, or a column of numbers"),
        ("ab", {}, "give a list with the text of each token"),
        (["a"], {"logprobs": np.zeros((1, 2))}, "one number for each token"),
        (["a"], {"logprobs": ["x"]}, "TypeError"),
    ],
)
def test_wrong_tokens_are_reported_and_the_sample_is_recorded(tmp_path, texts, columns, reason, caplog):
    _, sample, [error] = recorded(tmp_path, hl.Tokens(texts, **columns))
    assert sample.completion == "a b"
    assert reason in error["reason"]
    assert reason in sample.tokens["problem"]


def test_texts_and_ids_that_hold_a_secret_together_are_left_out(tmp_path):
    given = hl.Tokens(["my s3", "cret"], ids=[1, 2], logprobs=[-1.0, -2.0])
    directory, sample, _ = recorded(tmp_path, given, redact="s3cret")
    table = read_tokens(read_blob(directory, sample.tokens["blob"]))
    assert (table.texts, table.ids, table.columns) == (None, None, {"logprobs": [-1.0, -2.0]})
    assert sample.tokens["data"]["redacted"] is True


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not tokens",
        *(
            zlib.compress(msgspec.msgpack.encode(document))
            for document in (
                {"count": 3, "columns": {"logprobs": b"1234"}},
                {"count": 1, "texts": ["a", "b"], "columns": {}},
                {"count": -1, "columns": {}},
                {"count": "x"},
                [],
            )
        ),
    ],
    ids=repr,
)
def test_blob_that_holds_no_tokens_is_refused(content):
    with pytest.raises(TokensError):
        read_tokens(content)


@pytest.mark.parametrize(
    "part", [{"texts": ["ab"] * (MAX_TOKENS + 1)}, {"columns": dict.fromkeys(map(str, range(17)), b"")}]
)
def test_blob_of_too_many_tokens_or_columns_is_refused_before_it_is_unpacked(part):
    content = zlib.compress(msgspec.msgpack.encode({"count": 0, "columns": {}} | part))
    with pytest.raises(TokensError, match="cannot be read: Expected .* of length <="):
        read_tokens(content)


def test_texts_of_tokens_add_up_to_the_text_with_characters_of_several_tokens():
    content = "né 好!".encode()

    def decode(ids):  # one token for each byte
        return bytes(ids).decode(errors="replace")

    texts = token_texts(list(content), decode)
    assert "".join(texts) == "né 好!"
    assert texts == ["n", "", "é", " ", "", "", "好", "!"]
