"""How deep lines of JSON are, looked at piece by piece."""

import contextlib
import json
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._engine.errors import OptionError
from hookline._record.records import MAX_DEPTH
from hookline.server.limits import check_lines_depth

TEXTS = st.text(alphabet='\\"[]{}a\né', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def levels(value):
    """How deep a value is nested."""
    if isinstance(value, dict | list):
        return 1 + max(map(levels, value.values() if isinstance(value, dict) else value), default=0)
    return 0


@given(value=VALUES, before=VALUES, around=st.integers(MAX_DEPTH - 5, MAX_DEPTH), chunk_bytes=st.integers(1, 9))
def test_depth_of_a_line_in_pieces_is_that_of_its_value(value, before, around, chunk_bytes):
    text = json.dumps(before) + "\n" + "[" * around + json.dumps(value) + "]" * around + "\n"
    is_refused = around + levels(value) > MAX_DEPTH
    with pytest.raises(OptionError, match="nested") if is_refused else contextlib.nullcontext():
        check_lines_depth(text.encode(), chunk_bytes=chunk_bytes)


@given(begun=st.binary(max_size=8), chunk_bytes=st.integers(1, 9))
def test_depth_of_a_line_does_not_depend_on_the_lines_before_it(begun, chunk_bytes):
    flat = b'["' + b"[" * 2 * MAX_DEPTH + b'"]\n'
    check_lines_depth(begun.translate(None, b"[{") + b"\n" + flat, chunk_bytes=chunk_bytes)


def test_depth_of_a_line_of_many_texts_is_found_in_little_memory():
    line = b'{"a":[' + b'"a",' * (1 << 20) + b'1],"c":[' + b"[]," * 200 + b"1]}\n"
    tracemalloc.start()
    try:
        check_lines_depth(line)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(line)
