"""Metrics of documents whose numbers are known: short, empty, of characters with several bytes."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from retro.config import EvaluationConfig, ModelConfig
from retro.model.retro import Retro
from retro.retrieval.chunks import ChunkTable
from retro.scoring.bits_per_byte import Metrics, Scores, Sizes, chunk_bytes, measure, score, score_modes
from retro.scoring.intervals import Interval
from retro.scoring.parts import Inputs, PartScorer
from retro.stages.parts import ARRAY, Parts
from tests.scoring.stores import TEXTS, ByteTokenizer, store_of

CONFIG = EvaluationConfig(window=16, stride=8, batch_size=2)


def model_of(vocab_size: int = 258) -> Retro:
    torch.manual_seed(0)
    config = ModelConfig(
        vocab_size=vocab_size,
        d_model=8,
        num_layers=1,
        num_heads=1,
        head_dim=8,
        ffw_dim=16,
        chunk_len=8,
    )
    return Retro(config).eval()


def test_a_uniform_model_has_known_metrics(tmp_path: Path) -> None:
    model, store, tokenizer = model_of(), store_of(TEXTS, tmp_path / "tokens"), ByteTokenizer()
    with torch.no_grad():
        model.embedding.weight.zero_()
    found = measure(score(model, store, CONFIG).by_document(), Sizes.of(store, tokenizer))
    assert found.bits_per_byte.estimate == pytest.approx(math.log2(258), rel=1e-6)  # a token is a byte
    assert found.bits_per_byte.low == pytest.approx(found.bits_per_byte.high)
    assert found.perplexity_per_token.estimate == pytest.approx(258, rel=1e-5)
    num_bytes, num_words = sum(len(text.encode()) for text in TEXTS), sum(len(text.split()) for text in TEXTS)
    assert math.log(found.perplexity_per_word.estimate) == pytest.approx(
        math.log(258) * num_bytes / num_words, rel=1e-6
    )
    assert found.perplexity_per_word.low < found.perplexity_per_word.estimate < found.perplexity_per_word.high


def test_sizes_by_hand(tmp_path: Path) -> None:
    sizes = Sizes.of(store_of(TEXTS, tmp_path / "tokens"), ByteTokenizer())
    assert sizes.num_words.tolist() == [0, 1, 2, 1, 3, 0, 0, 6]
    assert sizes.num_bytes.tolist() == [0, 2, 9, 41, 24, 0, 3, 24]
    assert sizes.num_tokens.tolist() == sizes.num_bytes.tolist()


def test_metrics_by_hand() -> None:
    sizes = Sizes(np.array([8, 2]), np.array([4, 1]), np.array([2, 0]))
    found = measure(np.array([12.0, 3.0]), sizes)
    assert (found.bits_per_byte.estimate, found.perplexity_per_token.estimate) == (1.5, 8.0)
    assert found.perplexity_per_word.estimate == pytest.approx(2**7.5)
    assert measure(np.array([12.0, 3.0]), sizes, np.array([True, False])).perplexity_per_word == Interval(
        64.0, 64.0, 64.0
    )
    assert Metrics.read({name: vars(value) for name, value in vars(found).items()}) == found


def test_a_character_split_across_chunks_counts_its_bytes_where_they_are(tmp_path: Path) -> None:
    store = store_of(
        ["abcdefg雨z"], tmp_path / "tokens"
    )  # 雨 has three bytes, the first of them in the first chunk
    table = ChunkTable(store, 8)
    assert chunk_bytes(table, ByteTokenizer()).tolist() == [8, 3]
    assert Scores(store, np.arange(12.0)).by_chunk(table).tolist() == [28.0, 38.0]


def test_a_part_that_was_kept_is_not_scored_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, parts = store_of(TEXTS, tmp_path / "tokens"), Parts(tmp_path / "parts", ARRAY)
    whole = score(model_of(), store, CONFIG).bits
    asked: list[int] = []
    original = PartScorer.__call__

    def called(self: PartScorer, part: list[Inputs]) -> np.ndarray:
        if len(asked) == 1:
            raise KeyboardInterrupt
        asked.append(1)
        return original(self, part)

    monkeypatch.setattr(PartScorer, "__call__", called)
    with pytest.raises(KeyboardInterrupt):
        score_modes(model_of(), store, CONFIG, None, (0,), parts=parts)
    asked.clear()
    told: list[tuple[int, int]] = []
    resumed = score_modes(
        model_of(), store, CONFIG, None, (0,), lambda done, total: told.append((done, total)), parts
    )[0]
    assert asked == [1]
    assert told[-1] == (12, 12)
    np.testing.assert_array_equal(resumed.bits, whole)
