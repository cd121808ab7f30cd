"""A datastore in parts: what they find together is what one search finds, to the bit and in its order.

The parts are opened here, but only from what is sent. `test_engines.py` has them in processes of Ray.
"""

import pickle
import random
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from retro.errors import ConfigError
from retro.retrieval.datastore import Datastore, holding, merging
from retro.retrieval.datastore.holding import Holder
from retro.retrieval.datastore.ledger import CompactedError
from retro.retrieval.datastore.spread import SpreadSnapshot, sized
from retro.retrieval.engines import EngineError, EngineSetting
from retro.retrieval.engines.actors import Request
from retro.retrieval.index import Entries
from retro.retrieval.index.compressed import CompressedIndex
from tests.retrieval.datastores import build, corpus_of, make_documents

SMALL: dict[str, Any] = {"segment_chunks": 400, "exact_below": 300}
WORDS = "the licence permits anyone to use copy modify and share this software"
Change = Callable[[Datastore], object]


class Here:
    """Processes that are this one, and are told as little as those that are not."""

    def __init__(self, parts: int, setting: EngineSetting | None = None) -> None:
        self.setting = setting or EngineSetting(address="ray", collection="here", parts=parts, replicas=1)
        self.holders = [Holder() for _ in range(parts)]
        self.opened = 0
        self.rounds = 0

    def ask(self, requests: Mapping[int, Request]) -> dict[int, Any]:
        self.rounds += 1
        return {part: self._asked(self.holders[part], request) for part, request in requests.items()}

    def _asked(self, holder: Holder, request: Request) -> Any:
        sent = pickle.loads(pickle.dumps(request))  # noqa: S301
        answer = holder.answer(sent.name, sent.question)
        if answer is None:
            self.opened += 1
            holder.hold(sent.files)
            answer = holder.answer(sent.name, sent.question)
        return pickle.loads(pickle.dumps(answer))  # noqa: S301

    hold = ask


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, static_encoder: str) -> Iterator[Path]:
    """About 900 chunks, in three segments below one index."""
    folder = tmp_path_factory.mktemp("spread")
    rng = random.Random(4)
    (folder / "texts").mkdir()
    for number in range(30):
        text = "\n".join(" ".join(rng.choices(WORDS.split(), k=14)) for _ in range(12))
        (folder / "texts" / f"{number:02d}.txt").write_text(f"Text {number}\n{text}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MIN_JOINED", 300)
        work = corpus_of(folder / "work", folder / "texts")
        build(work, folder / "datastore", static_encoder, **SMALL).close()
        graphs = {**SMALL, "exact_below": 100, "index": "HNSW24"}
        build(work, folder / "graphs", static_encoder, **graphs).close()
        build(work, folder / "words", static_encoder, **{**SMALL, "index": "bm25"}).close()
        yield folder


@pytest.fixture
def datastore(built: Path, tmp_path: Path) -> Iterator[Datastore]:
    shutil.copytree(built / "datastore", tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    yield datastore
    datastore.close()


def spread(datastore: Datastore, actors: Here, monkeypatch: pytest.MonkeyPatch) -> SpreadSnapshot:
    """The newest version over these processes."""
    monkeypatch.setattr(datastore, "actors", lambda _: actors)
    return datastore.spread(actors.setting)


def texts(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS.split(), k=20)) for _ in range(count)]


def add(count: int, seed: int, source: str) -> Change:
    return lambda datastore: datastore.add(make_documents(texts(count, seed), source))


CHANGES: dict[str, list[Change]] = {
    "one index": [],
    "with deleted documents": [lambda datastore: datastore.delete(ids=["03.txt", "11.txt", "12.txt"])],
    "with others beside it": [add(5, 1, "few"), lambda datastore: datastore.delete(ids=["few-2", "07.txt"])],
    "merged": [add(90, 2, "many"), lambda datastore: datastore.delete(ids=["many-1"])],
    "compacted": [
        lambda datastore: datastore.delete(ids=[f"{number:02d}.txt" for number in range(0, 30, 3)]),
        add(5, 1, "few"),
        lambda datastore: datastore.compact(),
    ],
}


@pytest.mark.parametrize(
    ("changes", "parts"), [*((name, 2) for name in CHANGES), ("with others beside it", 5)]
)
def test_the_neighbours_are_those_of_this_machine(
    datastore: Datastore, changes: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for change in CHANGES[changes]:
        change(datastore)
    here, there = datastore.snapshot(), spread(datastore, Here(parts), monkeypatch)
    assert here.joint is not None
    assert len(there.divided()) == min(parts, len(here.segments))
    keys = np.concatenate([segment.keys for segment in here.segments])
    _, asked = datastore.queries(texts(40, 9))
    numbers = np.concatenate([segment.documents["number"] for segment in here.segments]).tolist()
    filters: list[dict[str, Any]] = [
        {},
        {"without": numbers[:7]},
        {"documents": numbers[4:9]},  # so few that every key of theirs is looked at
        {"documents": numbers[2:], "without": numbers[5:9]},
        {"documents": []},
    ]
    for entries in (Entries(keys[::15]), asked, Entries(keys[:0])):
        for k in (1, 7, 300):
            for chosen in filters:
                expected, found = here.search(entries, k, **chosen), there.search(entries, k, **chosen)
                np.testing.assert_array_equal(found[1], expected[1], err_msg=str((k, chosen)))
                np.testing.assert_array_equal(found[0], expected[0])


def test_lists_that_hold_too_few_are_followed_by_others_and_by_every_key(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = Here(2)
    here, there = datastore.snapshot(), spread(datastore, actors, monkeypatch)
    # As if so many lists were always enough: one, and then eight of them.
    monkeypatch.setattr(CompressedIndex, "_lists_for", lambda *_: 1)
    keys = Entries(here.segments[0].keys[:50])
    rounds = set()
    for k in (2, 200, 1200):
        before = actors.rounds
        for found, expected in zip(there.search(keys, k), here.search(keys, k), strict=True):
            np.testing.assert_array_equal(found, expected)
        rounds.add(actors.rounds - before)
    assert rounds == {1, 2, 3}


@pytest.mark.parametrize("kind", ["graphs", "words"])
def test_segments_with_indexes_of_their_own_are_searched_by_these(
    built: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "words":
        pytest.importorskip("bm25s")
    datastore = Datastore.open(built / kind)
    here, there = datastore.snapshot(), spread(datastore, Here(2), monkeypatch)
    assert len(here.indexed) == len(here.segments) >= 3
    _, entries = datastore.queries(texts(60, 9))
    for k in (1, 10, 50):
        for found, expected in zip(there.search(entries, k), here.search(entries, k), strict=True):
            np.testing.assert_array_equal(found, expected)
    datastore.close()


def test_a_new_version_opens_what_is_new_alone(datastore: Datastore, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Path] = []
    real = holding.Segment
    monkeypatch.setattr(holding, "Segment", lambda path, *rest: (opened.append(path), real(path, *rest))[1])
    monkeypatch.setattr(holding, "open_slice", sliced := Counting(holding.open_slice))
    actors = Here(2)
    _, entries = datastore.queries(texts(4, 9))
    there = spread(datastore, actors, monkeypatch)
    there.search(entries, 5)
    there.search(entries, 5)
    assert (len(opened), sliced.calls, actors.opened) == (len(there.segments), 2, 2)
    gone = there.documents(there.search(entries, 5)[1][0, :1]).tolist()
    datastore.delete(ids=[datastore.ledger.documents(gone, there.version.number)[gone[0]]["id"]])
    later = spread(datastore, actors, monkeypatch)
    found = later.search(entries, 5)[1]
    assert not np.isin(later.documents(found), gone).any()
    assert (len(opened), sliced.calls, actors.opened) == (len(there.segments), 2, 4)
    # A search of the version before still finds the document.
    assert np.isin(there.documents(there.search(entries, 5)[1]), gone).any()


class Counting:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return self._function(*arguments)


def test_what_a_slice_holds_is_its_own_codes_alone(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = Here(3)
    there = spread(datastore, actors, monkeypatch)
    there.hold()
    sizes = []
    for holder in actors.holders:
        (part,) = holder._parts.values()
        assert part.slice is not None
        ivf = faiss.downcast_index(faiss.extract_index_ivf(part.slice.index._index))
        sizes.append(sum(ivf.invlists.list_size(number) for number in range(ivf.nlist)))
        assert sizes[-1] == sum(len(segment.keys) for segment in part.segments.values())
    assert sum(sizes) == len(there)


def test_files_that_are_gone_are_those_of_an_earlier_version(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the process had them open, or is to open them now."""
    _, entries = datastore.queries(texts(4, 9))
    actors = Here(2)
    held, late = spread(datastore, actors, monkeypatch), spread(datastore, Here(2), monkeypatch)
    early = spread(datastore, Here(2), monkeypatch)
    expected = held.search(entries, 5)
    late.divided()
    datastore.delete(ids=["03.txt"])
    datastore.compact()
    for found, true in zip(held.search(entries, 5), expected, strict=True):
        np.testing.assert_array_equal(found, true)
    for snapshot in (late, early):
        with pytest.raises(CompactedError):
            snapshot.search(entries, 5)


def test_other_files_than_the_ledger_s_are_refused(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = spread(datastore, Here(2), monkeypatch)
    _, entries = datastore.queries(texts(4, 9))
    there.divided()
    (keys := there.segments[0].path / "keys.npy").write_bytes(keys.read_bytes() + b"more")
    with pytest.raises(EngineError, match=r"does not see .*keys\.npy as it is here; .*run: retro db engine"):
        there.search(entries, 5)


def test_chunks_that_are_not_there_are_never_passed_on(
    datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = spread(datastore, Here(2), monkeypatch)
    _, entries = datastore.queries(texts(4, 9))
    monkeypatch.setattr(there, "joint_chunks", lambda rows: rows + 100_000)
    with pytest.raises(EngineError, match="they found chunks that are not there; expected version"):
        there.search(entries, 5)


def test_numbers_of_parts_that_cannot_be_are_refused(datastore: Datastore) -> None:
    with pytest.raises(ConfigError, match=r"found -1 parts and 0 replicas; expected 1 or more"):
        sized(EngineSetting(address="ray", collection="x", parts=-1))
    with pytest.raises(ConfigError, match="has no parts and replicas of ours; expected them for ray alone"):
        datastore.use_engine("milvus:x.db", parts=2)
    assert sized(EngineSetting(address="ray", collection="x", parts=3)).replicas == 2
