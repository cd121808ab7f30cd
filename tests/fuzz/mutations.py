"""Valid files, changed a little: bytes, JSON values, arrays, tensors and rows of SQLite.

A small change of a valid file gets further into a reader than noise does.
"""

import io
import json
from typing import Any

import numpy as np
from hypothesis import strategies as st

WORDS = st.sampled_from(["", "x", "text", "é雨\u202e", "\ud800", "a/b", "../..", "\0", "[bold]", "-1", "nan"])
NUMBERS = st.sampled_from(
    [0, 1, -1, 2, 7, 255, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, float("nan"), float("inf")]
)
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    NUMBERS,
    WORDS,
    st.sampled_from([[], {}, [[]], [0], ["x"], {"x": 0}, {"": None}, [None, 1, "x"]]),
)
"""What may stand in the place of any JSON value."""
DEEP = "a value that is nested deeply"
DEEP_TEXT = "[" * 5_000 + "]" * 5_000
PIECES = [
    b"\0",
    b"\xff",
    b'"',
    b"{",
    b"}",
    b"[",
    b",",
    b":",
    b"\n",
    b"-",
    b"9" * 40,
    b"\xff\xfe",
    b"\xf0\x9f",
]


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """One to three changes: flipped bits, cuts, pieces that are repeated, left out or put in."""
    for _ in range(draw(st.integers(1, 3))):
        content = _change(draw, content)
    return content


def _change(draw: st.DrawFn, content: bytes) -> bytes:
    kind = draw(st.sampled_from(["flip", "set", "cut", "leave out", "repeat", "put in", "swap", "empty"]))
    # Beginnings hold headers, where a change means most.
    last = max(0, len(content) - 1)
    place = draw(st.one_of(st.integers(0, min(last, 160)), st.integers(0, last)))
    length = draw(st.sampled_from([1, 2, 4, 8, 100, 5000]))
    before, piece, after = content[:place], content[place : place + length], content[place + length :]
    if kind == "flip" and piece:
        return before + bytes([piece[0] ^ (1 << draw(st.integers(0, 7)))]) + content[place + 1 :]
    if kind == "set" and piece:
        return before + bytes([draw(st.sampled_from([0, 1, 127, 128, 254, 255]))]) + content[place + 1 :]
    if kind == "cut":
        return before
    if kind == "leave out":
        return before + after
    if kind == "repeat":
        return before + piece * draw(st.integers(2, 4)) + after
    if kind == "put in":
        return before + draw(st.sampled_from(PIECES)) + content[place:]
    if kind == "swap":
        return before + after[:length] + piece + after[length:]
    return b"" if kind == "empty" else content + b"\0"


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> str:
    """JSON in which a value or two are of another kind, missing, huge or nested deeply; at times no JSON."""
    for _ in range(draw(st.integers(1, 2))):
        value = draw(changed_value(value))
    text = json.dumps(value).replace(json.dumps(DEEP), DEEP_TEXT)
    if draw(st.integers(0, 9)) == 0:
        return draw(changed_bytes(text.encode())).decode("utf-8", "surrogateescape")
    return text


@st.composite
def changed_value(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one of its parts changed."""
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            return {name: part for name, part in value.items() if name != key}
        if kind == 1:
            return {**value, draw(WORDS): draw(VALUES)}
        return {**value, key: draw(changed_value(value[key]))}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        kind = draw(st.integers(0, 9))
        if kind == 0:
            return value[:place] + value[place + 1 :]
        if kind == 1:
            return [*value, value[place]]
        return [*value[:place], draw(changed_value(value[place])), *value[place + 1 :]]
    return draw(st.one_of(VALUES, VALUES, VALUES, st.just(DEEP)))


@st.composite
def changed_lines(draw: st.DrawFn, content: bytes) -> bytes:
    """JSON lines of which one is changed."""
    lines = content.splitlines(keepends=True)
    place = draw(st.integers(0, len(lines) - 1))
    text = draw(changed_json(json.loads(lines[place])))
    lines[place] = text.encode("utf-8", "surrogatepass") + b"\n"
    return b"".join(lines)


@st.composite
def changed_array(draw: st.DrawFn, content: bytes) -> bytes:
    """A .npy file of another type, shape or length, with some other numbers in it."""
    array = np.load(io.BytesIO(content), allow_pickle=False)
    kind = draw(st.sampled_from(["number", "type", "shape", "length", "bytes"]))
    if kind == "bytes" or array.dtype.names:
        return draw(changed_bytes(content))
    array = array.copy()
    if kind == "number" and array.size:
        number = draw(st.sampled_from([0, 1, -1, 2**15, 2**31 - 1, 2**62]))
        place = draw(st.integers(0, array.size - 1))
        with np.errstate(all="ignore"):
            array.reshape(-1)[place] = np.array(number).astype(array.dtype)
    elif kind == "type":
        kinds = st.sampled_from(["float64", "int8", "bool", "complex64", "S3", "<M8[s]"])
        with np.errstate(all="ignore"):  # numbers that do not fit are welcome
            array = array.astype(draw(kinds))
    elif kind == "shape":
        array = draw(st.sampled_from([array[None], array.reshape(-1), array.reshape(-1, 1), np.zeros(())]))
    elif kind == "length":
        array = draw(st.sampled_from([array[:-1], array[:0], np.concatenate([array, array])]))
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def changed_file(name: str, content: bytes) -> st.SearchStrategy[bytes]:
    """A change that suits the format, which the name tells; one time in three, of bytes alone."""
    changed = changed_bytes(content)
    if not content:
        return changed
    if name.endswith((".json", ".summary")):
        fitting = changed_json(json.loads(content)).map(lambda text: text.encode("utf-8", "surrogateescape"))
    elif name.endswith(".jsonl"):
        fitting = changed_lines(content)
    elif name.endswith(".npy"):
        fitting = changed_array(content)
    else:
        return changed
    return st.one_of(fitting, fitting, changed)
