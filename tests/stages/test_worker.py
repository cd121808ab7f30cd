"""What a worker elsewhere must have in common with the command: its code, its folder and its files."""

import os
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from retro.errors import RetroError
from retro.stages.cluster import RayExecutor, open_executor
from retro.stages.executor import LocalExecutor
from retro.stages.worker import MARK, WorkerError, call, package_version, terms_for


def test_the_same_code_and_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work, source = tmp_path / "work", tmp_path / "notes.txt"
    work.mkdir()
    source.write_text("words")
    monkeypatch.chdir(tmp_path)
    with terms_for([work], [source, work]) as terms:
        (mark,) = work.iterdir()
        assert mark.name.startswith(MARK)
        monkeypatch.chdir("/")
        assert call(terms, str.upper, "word") == "WORD"
        # Relative paths begin where the command was given.
        assert Path.cwd() == tmp_path
    assert not list(work.iterdir())


def test_another_folder_of_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    work, source = tmp_path / "work", tmp_path / "notes.txt"
    work.mkdir()
    source.write_text("words")
    host = socket.gethostname()
    with terms_for([work], [source]) as terms:
        work.rename(tmp_path / "elsewhere")
        work.mkdir()
        with pytest.raises(WorkerError, match=rf"a worker on {host} does not see {work} as it is here"):
            terms.check()
        work.rmdir()
        (tmp_path / "elsewhere").rename(work)
        terms.check()
        source.write_text("other words")
        with pytest.raises(WorkerError, match=rf"does not see {source} .*storage that all of them share"):
            terms.check()
        source.unlink()
        with pytest.raises(WorkerError, match="does not see"):
            call(replace(terms, folder="/nowhere"), str.upper, "word")


def test_other_code_is_refused(tmp_path: Path) -> None:
    with terms_for([], []) as terms:
        pass
    assert terms.package == package_version()
    with pytest.raises(WorkerError, match=r"runs retro .*; expected 0.0.1, as here; install the same"):
        replace(terms, package="0.0.1").check()


def test_a_cluster_that_is_not_there_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # bound, and nobody listens
        monkeypatch.setenv("RAY_ADDRESS", address)
        started = time.monotonic()
        with pytest.raises(
            RetroError, match=rf"no Ray cluster answers at {address}.*ray start --head"
        ) as caught:
            list(RayExecutor().map(os.path.exists, ["/"]))
        assert time.monotonic() - started < 5
    assert "\n" not in str(caught.value)


def test_an_executor_goes_by_its_name() -> None:
    for workers, default, expected in ((0, 1, 1), (3, 1, 3), (0, 0, os.cpu_count())):
        executor = open_executor("local", workers, default)
        assert isinstance(executor, LocalExecutor)
        assert executor.num_workers == expected
    assert isinstance(open_executor("ray", 2, 1), RayExecutor)
