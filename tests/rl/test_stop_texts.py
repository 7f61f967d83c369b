"""Stop texts: found across tokens and bytes, at the token that completes them."""

import pytest

from hookline.rl.policies.base import StopTexts


class Pieces:
    """Decodes tokens to pieces, like a byte-level tokenizer, and counts how often."""

    def __init__(self, *pieces):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.calls = 0

    def __call__(self, tokens):
        self.calls += 1
        return b"".join(self.pieces[token] for token in tokens).decode(errors="replace")


def first_reached(stops, tokens):
    """How many tokens it takes."""
    return next((count for count in range(1, len(tokens) + 1) if stops.reached(tokens[:count])), None)


@pytest.mark.parametrize(
    ("stop", "pieces", "count", "text"),
    [
        ("</a>", ["x", "<", "/", "a", ">", "y"], 5, "x"),
        ("</a>", ["x</", "a>y", "z"], 2, "x"),
        ("b", ["abc", "d"], 1, "a"),
        ("é", ["x", b"\xc3", b"\xa9", "y"], 3, "x"),
        ("\n\n", ["x\n", "y", "\n", "\n", "z"], 4, "x\ny"),
        (". ", ["a.", "b", ".", " c", "d"], 4, "a.b"),
        ("no", ["n", "i", "o"], None, "nio"),
    ],
)
def test_stop_text_in_any_tokens_is_reached_at_the_token_that_completes_it(stop, pieces, count, text):
    decode = Pieces(*pieces)
    stops, tokens = StopTexts([stop], decode), list(range(len(pieces)))
    assert first_reached(stops, tokens) == count
    assert stops.cut(decode(tokens[:count])) == text


def test_stop_texts_several_of_them_cut_at_the_first_one_in_the_text():
    stops = StopTexts(["later", "la"], Pieces("a la", "ter"))
    assert stops.reached([0])
    assert stops.cut("a later") == "a "


def test_stop_text_after_a_long_completion_is_looked_for_in_the_last_tokens_only():
    seen = []
    pieces = Pieces("a", "<", ">")
    stops = StopTexts(["<>"], lambda tokens: seen.append(len(tokens)) or pieces(tokens))  # type: ignore[func-returns-value]
    tokens = [0] * 1000
    for count in range(1, 1001):
        assert not stops.reached(tokens[:count])
    assert stops.reached([*tokens, 1, 2])
    assert max(seen) < 10
    assert len(seen) < 10


def test_stop_texts_none_of_them_never_decode():
    decode = Pieces("a")
    stops = StopTexts([], decode)
    assert not stops.reached([0])
    assert stops.cut("abc") == "abc"
    assert decode.calls == 0
