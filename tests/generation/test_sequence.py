import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.request import Choice
from retro.generation.sequence import Growing, Sample, TextStream
from retro.workspace import Workspace

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(workspace: Workspace) -> Tokenizer:
    return workspace.datastore().tokenizer


def stream_all(tokenizer: Tokenizer, tokens: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], bool]:
    stream, texts = TextStream(tokenizer, stop), []
    for token in tokens:
        text, stopped = stream.push(token)
        texts.append(text)
        if stopped:
            return texts, True
    return [*texts, stream.finish()], False


@QUICK
@given(text=st.text(max_size=30))
def test_no_character_is_torn(tokenizer: Tokenizer, text: str) -> None:
    texts, _ = stream_all(tokenizer, tokenizer.encode(text))
    assert "".join(texts) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in part for part in texts)
    assert "".join(tokenizer.pieces(tokenizer.encode(text))) == text


def test_a_character_comes_with_the_token_that_ends_it(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("🜚")
    assert len(tokens) == 4  # by its bytes
    assert tokenizer.pieces(tokens) == ["", "", "", "🜚"]
    assert tokenizer.pieces(tokens[:2]) == ["", "\ufffd"]
    assert tokenizer.pieces([]) == []


@QUICK
@given(
    text=st.text(alphabet="abé🜚 ", max_size=20),
    stop=st.lists(st.text(alphabet="abé🜚 ", min_size=1, max_size=4), max_size=3),
)
def test_a_sample_ends_before_the_first_stop_text(tokenizer: Tokenizer, text: str, stop: list[str]) -> None:
    texts, stopped = stream_all(tokenizer, tokenizer.encode(text), tuple(stop))
    # The token that first completes some stop text decides; within it the earliest beginning.
    joined = "".join(texts)
    assert stopped == any(s in text for s in stop)
    assert text.startswith(joined)
    assert not any(s in joined for s in stop)
    if stopped:
        assert any(text[len(joined) :].startswith(s) for s in stop)
    else:
        assert joined == text


def test_stop_texts_do_not_count_before_their_time(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ("ab",))
    (a,), (b,) = tokenizer.encode("a"), tokenizer.encode("b")
    assert [stream.push(token, may_stop=False) for token in (a, b)] == [("", False), ("ab", False)]
    assert [stream.push(token) for token in (a, b)] == [("", False), ("", True)]
    assert stream.num_bytes == 2


def test_tokens_and_neighbours_behind_a_stop_text_are_dropped(workspace: Workspace) -> None:
    """Of a, b, c with the stop text "bc" only a remains, and a chunk that was complete is so no longer."""
    tokenizer = workspace.datastore().tokenizer
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    growing = Growing(Sample([a], 1, 3, log_probs=[]), tokenizer, Choice(stop=("bc",)), 9, "seed")
    told = [growing.take(a, -1.0), growing.take(b, -2.0)]
    growing.sample.neighbours.append([])
    told.append(growing.take(c, -3.0))
    assert [(token.text, token.finish) for token in told] == [("a", None), ("", None), ("", "stop")]
    sample = growing.sample
    assert (sample.tokens, sample.text, sample.log_probs, sample.neighbours) == ([a, a], "a", [-1.0], [])
    assert growing.unsearched() == []
