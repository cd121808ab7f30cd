"""Processes of a real Ray that hold the parts of a datastore, and what happens when they are lost."""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retro.cli.main import main
from retro.corpus.folder import CorpusFolder
from retro.retrieval.datastore import Datastore, joint, merging
from retro.retrieval.datastore.build import build_datastore
from retro.retrieval.datastore.info import describe
from retro.retrieval.datastore.spread import SpreadSnapshot
from retro.retrieval.engines import EngineError, EngineSetting, actors
from retro.retrieval.engines.actors import Actors, Request
from retro.retrieval.index import Entries
from retro.stages.cluster import RayExecutor
from tests.retrieval.datastore.test_merging import files_of
from tests.retrieval.datastores import build, config_of, corpus_of, held, make_documents

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = {"segment_chunks": 400, "exact_below": 300}
WORDS = "the licence permits anyone to use copy modify and share this software"


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """A real Ray of this machine, in which a part may have two processes on its only node."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, static_encoder: str) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("actors")
    rng = random.Random(4)
    (folder / "texts").mkdir()
    for number in range(30):
        text = "\n".join(" ".join(rng.choices(WORDS.split(), k=14)) for _ in range(12))
        (folder / "texts" / f"{number:02d}.txt").write_text(f"Text {number}\n{text}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "MIN_JOINED", 300)
        work = corpus_of(folder / "work", folder / "texts")
        build(work, folder / "work" / "datastore", static_encoder, **SMALL).close()
        yield folder


@pytest.fixture
def plain(built: Path, tmp_path: Path) -> Iterator[Datastore]:
    shutil.copytree(built / "work" / "datastore", tmp_path / "plain")
    datastore = Datastore.open(tmp_path / "plain")
    yield datastore
    datastore.close()


@pytest.fixture
def datastore(ray: Any, built: Path, tmp_path: Path) -> Iterator[Datastore]:
    shutil.copytree(built / "work" / "datastore", tmp_path / "datastore")
    datastore = Datastore.open(tmp_path / "datastore")
    datastore.use_engine("ray", parts=2, replicas=2)
    yield datastore
    datastore.close()


def processes(ray: Any, datastore: Datastore) -> dict[tuple[int, int], int]:
    """The numbers of the processes that hold the parts, by part and replica."""
    setting = datastore.engine_setting()
    assert setting is not None
    held_by = datastore.actors(setting)
    return {place: ray.get(held_by.handle(ray, place).about.remote()).process for place in held_by._places()}


def expect_same(ours: Datastore, theirs: Datastore, k: int = 7) -> None:
    keys = Entries(np.concatenate([segment.keys[::20] for segment in theirs.snapshot().segments]))
    found, expected = ours.snapshot().search(keys, k), theirs.snapshot().search(keys, k)
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_array_equal(found[0], expected[0])


def test_every_change_is_searched_at_once_and_as_here(
    ray: Any, datastore: Datastore, plain: Datastore
) -> None:
    assert isinstance(datastore.snapshot(), SpreadSnapshot)
    assert len(set(processes(ray, datastore).values())) == 4
    changes: list[Callable[[Datastore], object]] = [
        lambda each: each.delete(ids=["03.txt", "04.txt"]),
        lambda each: each.add(make_documents([WORDS * 3, "Nothing of the kind. " * 5])),
        lambda each: each.delete(ids=["more-0"]),
        lambda each: each.compact(),
    ]
    expect_same(datastore, plain)
    for change in changes:
        change(datastore)
        change(plain)
        expect_same(datastore, plain)
        assert held(datastore) == held(plain)
    assert datastore.snapshot().joint is not None


def test_lost_processes_cost_a_search_nothing_and_come_again(
    ray: Any, datastore: Datastore, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other is killed while three threads search."""
    monkeypatch.setattr(actors, "SLOW", 2.0)
    _, entries = datastore.queries([WORDS, "anyone may share"])
    expected = plain.snapshot().search(entries, 9)
    stop = threading.Event()

    def search() -> int:
        searches = 0
        while not stop.is_set():
            for found, true in zip(datastore.snapshot().search(entries, 9), expected, strict=True):
                np.testing.assert_array_equal(found, true)
            searches += 1
        return searches

    before = processes(ray, datastore)
    with ThreadPoolExecutor(3) as pool:
        searching = [pool.submit(search) for _ in range(3)]
        try:
            for place in ((0, 0), (1, 1)):
                time.sleep(0.5)
                os.kill(before[place], signal.SIGKILL)
        finally:
            time.sleep(2)
            stop.set()
        assert all(future.result() > 2 for future in searching)
    deadline = time.monotonic() + 60
    while "started" in (told := dict(describe(datastore).facts)["searched by"]):
        assert time.monotonic() < deadline, told
        time.sleep(0.5)
    after = processes(ray, datastore)
    assert {place for place in before if after[place] != before[place]} == {(0, 0), (1, 1)}
    expect_same(datastore, plain)


def test_both_processes_of_a_part_may_be_lost_as_long_as_they_come_again(
    ray: Any, datastore: Datastore, plain: Datastore
) -> None:
    before = processes(ray, datastore)
    for place in ((0, 0), (0, 1)):
        os.kill(before[place], signal.SIGKILL)
    expect_same(datastore, plain)
    setting = datastore.engine_setting()
    assert setting is not None
    datastore.actors(setting).end()  # for good, as with a cluster that was started anew
    expect_same(datastore, plain)


def test_a_part_without_any_process_is_one_line_and_no_neighbours(
    ray: Any, datastore: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone, and cannot be started where they run."""
    setting = datastore.engine_setting()
    assert setting is not None
    datastore.actors(setting).end()
    with monkeypatch.context() as patch:
        patch.setattr(actors, "PATIENCE", 3.0)
        patch.setattr(datastore.actors(setting), "_kind", fail)
        lost = r"\(RuntimeError: there is no room\); expected one for each of 2 parts; .*run: retro db engine"
        with pytest.raises(EngineError, match=lost) as caught:
            datastore.search(["anyone"], 3)
        assert "\n" not in str(caught.value)
        with pytest.raises(EngineError, match=r"version \d+ is committed, but the processes ray .* do not"):
            datastore.delete(ids=["03.txt"])
    datastore.actors(setting).end()
    assert "03.txt" not in held(datastore)


def fail() -> None:
    raise RuntimeError("there is no room")


def test_a_cluster_that_is_not_there_is_one_line(
    ray: Any, plain: Datastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EngineError, match=r"this process is in the Ray cluster .*; expected 127.0.0.1:9"):
        plain.use_engine("ray:127.0.0.1:9", parts=1)
    with monkeypatch.context() as patch:
        patch.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(EngineError, match=r"no Ray cluster answers at 127.0.0.1:9 .*ray start --head"):
            plain.use_engine("ray:127.0.0.1:9", parts=1)
    assert plain.engine_setting() is None
    assert plain.search(["anyone"], 3)[0]


def test_slow_processes_are_not_waited_for_alone(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is cut off, of which nobody knows yet."""
    monkeypatch.setattr(actors, "SLOW", 0.5)
    asked = Actors(EngineSetting(address="ray", collection="slow", parts=1, replicas=2), Sleeper)
    try:
        asked.prepare()
        os.kill(ray.get(asked.handle(ray, (0, 0)).about.remote()).process, signal.SIGSTOP)
        # In turn: one of these is asked of the process that does not answer.
        assert [asked.ask({0: Request("x", None)})[0] for _ in range(2)] == ["awake", "awake"]
    finally:
        asked.end()


class Sleeper:
    def hold(self, files: Any) -> None: ...

    def answer(self, name: str, question: Any) -> str:
        return "awake"


def test_codes_made_on_ray_are_those_of_one_process(
    ray: Any,
    built: Path,
    static_encoder: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joint, "BLOCK", 100)
    work = CorpusFolder(built / "work")
    stores, config = [work.store("train")], config_of(static_encoder, **SMALL)
    executor = RayExecutor(2)
    again = build_datastore(stores, work.tokenizer_path, tmp_path / "again", config, executor=executor)
    plain = build_datastore(stores, work.tokenizer_path, tmp_path / "plain", config)
    assert files_of(again) == files_of(plain)
    texts = [" ".join(random.Random(number).choices(WORDS.split(), k=30)) for number in range(90)]
    again.add(make_documents(texts), executor=executor)
    plain.add(make_documents(texts))
    assert files_of(again) == files_of(plain)
    for each, workers in ((again, executor), (plain, None)):
        each.delete(ids=["03.txt"])
        each.add(make_documents(texts[:5], "late"))
        each.compact(executor=workers)
    assert files_of(again) == files_of(plain)
    for each in (again, plain):
        each.close()


def test_the_commands_take_it_as_any_engine(
    ray: Any, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = Path(shutil.copytree(built / "work", tmp_path / "work"))

    def run(*arguments: str) -> str:
        assert main([*arguments]) == 0
        return " ".join(capsys.readouterr().out.split())

    here = run("db", "search", str(work), WORDS)
    run("neighbours", str(work))
    files = [work / "neighbours" / "train" / name for name in ("neighbours.npy", "distances.npy")]
    before = [file.read_bytes() for file in files]
    shutil.rmtree(work / "neighbours")
    told = run("db", "engine", str(work), "ray", "--parts", "2", "--replicas", "1")
    assert "is searched by ray (retro_" in told
    assert "recall@10" in told
    assert run("db", "search", str(work), WORDS) == here
    run("neighbours", str(work))
    assert [file.read_bytes() for file in files] == before
    assert "2 parts, each held by 1 process: part 1 on" in run("db", "info", str(work))
    assert "is searched by ray" in run("db", "engine", str(work))
    assert "own indexes" in run("db", "engine", str(work), "local")
    assert run("db", "search", str(work), WORDS) == here
