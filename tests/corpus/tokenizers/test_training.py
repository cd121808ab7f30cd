from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retro.config import CorpusConfig
from retro.corpus.documents import Document
from retro.corpus.readers import Problems
from retro.corpus.reading import Stream
from retro.corpus.text import write_text
from retro.corpus.tokenizers import Tokenizer
from retro.corpus.tokenizers.sentencepiece import train_tokenizer
from retro.corpus.tokenizers.training import bytes_by_source, sample_text, take_tokenizer
from retro.errors import ConfigError
from retro.stages.executor import LocalExecutor


@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.tuples(st.integers(1, 1000), st.floats(0.01, 10)), min_size=1
    ),
    st.integers(1, 3000),
)
def test_weights_are_kept_as_far_as_the_sources_reach(
    sources: dict[str, tuple[int, float]], budget: int
) -> None:
    sizes, weights = ({source: pair[number] for source, pair in sources.items()} for number in (0, 1))
    given_bytes = bytes_by_source(sizes, budget, weights)
    assert sum(given_bytes.values()) == pytest.approx(min(budget, sum(sizes.values())))
    ratios = {source: given_bytes[source] / weights[source] for source in sizes}
    for source, size in sizes.items():  # who gives less than others for its weight gives all it has
        assert given_bytes[source] <= size * (1 + 1e-9)
        if ratios[source] < max(ratios.values()) * (1 - 1e-9):
            assert given_bytes[source] == pytest.approx(size)


def test_without_weights_the_sample_is_even() -> None:
    assert bytes_by_source({"a": 300, "b": 100}, 40, {}) == {"a": 30.0, "b": 10.0}


def test_the_sample_of_a_corpus_has_the_weights(tmp_path: Path) -> None:
    documents = [
        Document(f"{source}{number}", f"{source} text {number} " * 20, source)
        for source in ("web", "news")
        for number in range(400)
    ]
    config = CorpusConfig(valid_fraction=0.0, test_fraction=0.0)
    stream = Stream(iter(documents), Problems())
    text = write_text(lambda _: [stream], tmp_path / "text", config, {}, LocalExecutor(1), Problems())
    budget = sum(text.train_bytes().values()) // 4
    counts: Counter[str] = Counter()
    for document in sample_text(text, budget, {"web": 1.0, "news": 3.0}):
        counts[document.source] += len(document.text)
    assert sum(counts.values()) == pytest.approx(budget, rel=0.2)
    assert counts["news"] / counts["web"] == pytest.approx(3.0, rel=0.3)


def test_weights_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"name \['c'\]; expected sources of the corpus: \['a'\]"):
        bytes_by_source({"a": 1}, 10, {"c": 1.0})
    with pytest.raises(ConfigError, match="expected none below 0 and one above"):
        bytes_by_source({"a": 1}, 10, {"a": 0.0})


@pytest.mark.parametrize("named", ["", "tokenizer"])
def test_the_tokenizer_of_a_run_is_taken_by_the_run_or_by_its_folder(named: str, tmp_path: Path) -> None:
    texts = [f"word {number} and another {number * 7}" for number in range(300)]
    run = tmp_path / "run"
    train_tokenizer(texts, run / "tokenizer", 300, "bpe", {})
    taken = take_tokenizer(str(run / named), tmp_path / "taken")
    assert taken.fingerprint == Tokenizer.open(run / "tokenizer").fingerprint
