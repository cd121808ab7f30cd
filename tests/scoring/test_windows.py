"""Windows over real documents and over short and empty ones that are written in the test."""

from pathlib import Path

import numpy as np
import pytest

from retro.scoring.windows import batches_of, windows_of
from retro.workspace import Workspace
from tests.scoring.stores import TEXTS, store_of


@pytest.mark.parametrize(("length", "stride"), [(32, 16), (32, 32), (16, 8), (4096, 64)])
def test_windows_score_every_token_once_with_the_longest_context(
    workspace: Workspace, length: int, stride: int
) -> None:
    store = workspace.store("test")
    times = np.zeros(len(store.tokens), dtype=int)
    context = np.zeros(len(store.tokens), dtype=int)
    for window in windows_of(store, length, stride):
        assert 0 < window.stop - window.start <= length
        assert (
            store.starts[window.document]
            <= window.start
            < window.score_from
            <= window.score_to
            <= store.ends[window.document]
        )
        assert (window.start - store.starts[window.document]) % stride == 0
        times[window.score_from : window.score_to] += 1
        context[window.score_from : window.score_to] = (
            np.arange(window.score_from, window.score_to) - window.start
        )
    first = np.isin(np.arange(len(times)), store.starts)
    assert (times == np.where(first, 0, 1)).all()
    position = np.arange(len(times)) - np.repeat(store.starts, store.ends - store.starts)
    assert (context[~first] >= np.minimum(position, length - stride + 1)[~first]).all()


def test_short_documents_have_their_own_windows_and_empty_ones_none(tmp_path: Path) -> None:
    store = store_of(TEXTS, tmp_path / "tokens")
    lengths: dict[int, list[int]] = {}
    for window in windows_of(store, 16, 8):
        lengths.setdefault(window.document, []).append(window.num_tokens)
    assert lengths == {1: [2], 2: [9], 3: [16, 16, 16, 16, 9], 4: [16, 16], 6: [3], 7: [16, 16]}
    assert list(lengths) == sorted(lengths)


def test_batches_hold_every_window_once_within_their_tokens(tmp_path: Path) -> None:
    windows = list(windows_of(store_of(TEXTS, tmp_path / "tokens"), 16, 8))
    batches = list(batches_of(windows, 32))
    assert sorted((window for batch in batches for window in batch), key=windows.index) == windows
    assert all(len(batch) * max(window.num_tokens for window in batch) <= 32 for batch in batches)
    assert [len(batch) for batch in batches] == [
        2,
        2,
        2,
        2,
        3,
        1,
    ]  # eight of 16 tokens, two of 9 with one of 3, one of 2
    assert all(len(batch) == 1 for batch in batches_of(windows, 1))


def test_only_windows_that_reach_what_is_wanted_are_made(tmp_path: Path) -> None:
    store = store_of(TEXTS, tmp_path / "tokens")
    document = 3  # of 42 tokens with its end
    start = int(store.starts[document])
    wanted = store.ends.copy()  # nothing of the others
    wanted[document] = start + 30
    found = list(windows_of(store, 16, 8, wanted))
    assert {window.document for window in found} == {document}
    assert [window.start - start for window in found] == [16, 24, 32]
    places = np.concatenate([np.arange(window.score_from, window.score_to) for window in found])
    assert places.tolist() == list(range(start + 30, start + 42))


def test_batches_can_be_limited_by_their_windows(tmp_path: Path) -> None:
    windows = list(windows_of(store_of(TEXTS, tmp_path / "tokens"), 16, 8))
    batches = list(batches_of(windows, max_windows=5))
    assert [len(batch) for batch in batches] == [5, 5, 2]
    lengths = [window.num_tokens for batch in batches for window in batch]
    assert lengths == sorted(lengths, reverse=True)
