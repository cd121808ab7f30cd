import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from retro.config import CorpusConfig
from retro.corpus.folder import CorpusFolder
from retro.corpus.ingest import ingest
from retro.errors import ConfigError, MissingExtraError, RetroError
from retro.stages.cluster import RayExecutor
from retro.stages.executor import LocalExecutor


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail(number: int) -> int:
    raise ValueError(f"item {number}")


def test_processes_are_let_go_when_they_are_closed_and_start_again() -> None:
    executor = LocalExecutor(2)
    assert [value for value, _ in executor.map(square, range(3))] == [0, 1, 4]
    assert len(multiprocessing.active_children()) == 2
    executor.close()
    assert multiprocessing.active_children() == []
    executor.close()  # nothing is left to close
    assert [value for value, _ in executor.map(square, range(2))] == [0, 1]
    executor.close()


def test_no_process_outlives_an_ingest(tmp_path: Path, text_folder: Path) -> None:
    executor = LocalExecutor(2)
    ingest(
        CorpusFolder(tmp_path),
        [str(text_folder), str(text_folder)],
        CorpusConfig(vocab_size=300),
        executor=executor,
    )
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order_from_bounded_input(num_workers: int) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    results = LocalExecutor(num_workers).map(square, items())
    first = next(results)
    assert len(taken) <= 2 + num_workers
    values = [first, *results]
    assert [value for value, _ in values] == [number * number for number in range(20)]
    assert (os.getpid() in {process for _, process in values}) == (num_workers == 1)


def test_one_item_needs_no_pool() -> None:
    assert list(LocalExecutor(2).map(square, [3])) == [(9, os.getpid())]
    assert list(LocalExecutor(2).map(square, [])) == []


def test_an_error_of_a_worker_reaches_the_caller() -> None:
    with pytest.raises(ValueError, match="item 0"):
        list(LocalExecutor(2).map(fail, range(3)))
    with pytest.raises(RetroError, match="did not start or were killed"):
        list(LocalExecutor(2).map(die, range(3)))
    with pytest.raises(ConfigError, match="num_workers is -1"):
        LocalExecutor(-1)


def test_processes_stay_for_the_next_stage() -> None:
    executor = LocalExecutor(2)
    first, second = ({process for _, process in executor.map(square, range(20))} for _ in range(2))
    assert first & second


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed.*retro-lm\[scale\]"):
        RayExecutor()


@pytest.fixture(scope="module")
def ray_executor() -> Iterator[RayExecutor]:
    """A real Ray of this machine; it takes some seconds to start."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield RayExecutor(2)
    ray.shutdown()


@pytest.mark.slow
def test_ray_gives_results_in_order_from_bounded_input(ray_executor: RayExecutor) -> None:
    taken: list[int] = []

    def items() -> Iterator[int]:
        for number in range(20):
            taken.append(number)
            yield number

    results = ray_executor.map(square, items())
    first = next(results)
    assert len(taken) <= 3
    values = [first, *results]
    assert [value for value, _ in values] == [number * number for number in range(20)]
    assert os.getpid() not in {process for _, process in values}
    with pytest.raises(ValueError, match=r"^item 0$"):
        list(ray_executor.map(fail, range(3)))
    with pytest.raises(RetroError, match="Ray lost a task"):
        list(ray_executor.map(die, range(1)))


@pytest.mark.slow
def test_ray_makes_the_same_corpus(
    ray_executor: RayExecutor, text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retro.corpus.text.SHARD_BYTES", 1500)
    config = CorpusConfig(vocab_size=320, valid_fraction=0.2, test_fraction=0.2)
    contents = []
    for name, executor in (("local", LocalExecutor(1)), ("ray", ray_executor)):
        ingest(CorpusFolder(tmp_path / name), [str(text_folder)], config, executor=executor)
        files = sorted(path for path in (tmp_path / name).rglob("*") if path.is_file())
        contents.append({path.relative_to(tmp_path / name): path.read_bytes() for path in files})
    assert len(list((tmp_path / "ray" / "text").glob("*.zst"))) > 5
    assert contents[0] == contents[1]
