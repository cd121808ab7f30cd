"""What is chosen for texts of all sizes, on slow machines and fast ones."""

from dataclasses import replace

import numpy as np
import pytest

from retro.config import CorpusConfig, DatastoreConfig, RunConfig
from retro.corpus.documents import Document, split_of
from retro.planning import choices
from retro.planning.speed import KeyTimes, TokenTimes
from retro.planning.survey import Survey, survey

SLOW = TokenTimes(baseline=3e-4, retro=7e-4)
FAST = TokenTimes(baseline=3e-7, retro=7e-7)


def a_survey(num_documents: int, num_bytes: int) -> Survey:
    rng = np.random.default_rng(0)
    sizes = np.full(num_documents, num_bytes // num_documents)
    return Survey(np.sort(rng.random(num_documents)), sizes, rng.random(num_documents), 0, ["text"])


@pytest.mark.parametrize(
    ("num_bytes", "times", "vocab_size"),
    [
        (50_000, FAST, 1024),
        (500_000, FAST, 1024),
        (5_000_000, FAST, 2048),
        (50_000_000, FAST, 8192),
        (50_000_000, SLOW, 2048),  # of which a slow machine reads a tenth
        (10**12, FAST, 32768),
    ],
)
def test_the_vocabulary_grows_with_what_is_read(num_bytes: int, times: TokenTimes, vocab_size: int) -> None:
    assert choices.vocabulary(num_bytes, 1800, times) == vocab_size


def test_short_documents_have_short_chunks() -> None:
    assert [choices.chunk_len(a_survey(50, 50 * size)) for size in (100, 400, 5_000)] == [16, 32, 64]


@pytest.mark.parametrize("number", [10, 40, 300, 20_000])
@pytest.mark.parametrize("size", [500, 500_000])
@pytest.mark.parametrize("minutes", [2, 30])
def test_enough_documents_are_held_out_and_most_are_left(number: int, size: int, minutes: int) -> None:
    found = choices.splits(a_survey(number, number * size), 60 * minutes, SLOW, 2)
    # Some tens, unless they are so long that scoring them would take the time of everything else.
    assert found.test_documents >= max(2, min(30 if size == 500 else 8, number // 8))
    assert found.valid_documents >= 1
    assert found.test_documents + found.valid_documents <= number * 0.4


def test_no_more_is_held_out_than_can_be_scored() -> None:
    long = a_survey(10_000, 50_000_000)
    quiet, hurried = (choices.splits(long, seconds, SLOW, 2) for seconds in (1800, 300))
    assert quiet.test_documents > hurried.test_documents >= 8
    tokens = quiet.test_bytes / choices.BYTES_PER_TOKEN
    scoring = choices.scoring_seconds((1, 2, 4), round(tokens), SLOW, 2)
    assert scoring < 1.2 * choices.EVALUATION_SHARE * 1800


def test_for_an_interval_twice_the_time_is_spent() -> None:
    # Twenty of these documents can be scored in the share of the time.
    assert choices.splits(a_survey(1000, 20_000_000), 1800, SLOW, 2).test_documents == 30


def test_the_splits_are_those_that_were_counted(tmp_path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"text {number} " * 200)
    found = survey([str(tmp_path)])
    held_out = choices.splits(found, 1800, SLOW, 2)
    config = CorpusConfig(test_fraction=held_out.test_fraction, valid_fraction=held_out.valid_fraction)
    documents = [Document(f"{number}.txt", "text", tmp_path.name) for number in range(60)]
    drawn = [split_of(document, config) for document in documents]
    assert drawn.count("test") == held_out.test_documents
    assert drawn.count("valid") == held_out.valid_documents


def test_of_a_sample_as_many_are_held_out() -> None:
    whole = a_survey(10_000, 50_000_000)
    sampled = whole.sampled(0.25)
    assert 2_000 < sampled.num_documents < 3_000
    assert sampled.num_bytes == 5_000 * sampled.num_documents
    counts = [choices.splits(found, 1800, SLOW, 2).test_documents for found in (whole, sampled)]
    assert counts[0] == counts[1]


def test_a_small_text_is_not_read_too_often() -> None:
    few = choices.amount(1800, FAST, 100_000)
    assert few.capped
    assert few.epochs == choices.MAX_EPOCHS
    many = choices.amount(1800, SLOW, 100_000_000)
    assert not many.capped
    # Validations take some of the time, and not much of it.
    assert 0.9 * 1800 / SLOW.both < many.tokens < 1800 / SLOW.both


@pytest.mark.parametrize("tokens", [1_000, 60_000, 1_000_000, 10**9])
@pytest.mark.parametrize("size", range(len(choices.SIZES)))
def test_every_amount_has_a_schedule_that_is_valid(tokens: int, size: int) -> None:
    training = choices.training(choices.Amount(tokens, 1.0, False), size)
    read = training.num_steps * training.batch_size * training.seq_len
    assert training.num_steps >= choices.LEAST_STEPS
    assert read <= max(tokens, choices.LEAST_STEPS * choices.LEAST_STEP_TOKENS)
    assert training.num_steps >= choices.MANY_STEPS or training.batch_size * training.seq_len == 512
    for chunk_len in (16, 32, 64):
        model = choices.model(size, 1024, chunk_len)
        evaluation = choices.evaluation(600, 50_000, SLOW, 2, training.seq_len)
        # The whole config checks itself: sequences and windows on the chunk grid, equal widths.
        RunConfig(
            name="study",
            model=model,
            datastore=DatastoreConfig(chunk_len=chunk_len),
            training=training,
            evaluation=evaluation,
        )


def test_fewer_numbers_of_neighbours_are_scored_if_time_is_short() -> None:
    seconds = [600 * choices.scoring_seconds((2,), 50_000, SLOW, 2), 10.0]
    ks = [choices.evaluation(value, 50_000, SLOW, 2, 512).num_neighbours for value in seconds]
    assert ks == [(1, 2, 4, 10), (2,)]


def test_a_graph_is_paid_by_the_key_and_exact_search_by_the_pair() -> None:
    times = KeyTimes(embedding=0.01, graph=0.002, pair=1e-7)
    assert times.datastore(1_000) == pytest.approx(10 + 0.1)
    assert times.datastore(100_000) == pytest.approx(1000 + 200)
    assert replace(times, embedding=0.0).embedding_all(1_000) == 0.0
