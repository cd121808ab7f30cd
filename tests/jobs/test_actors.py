"""Sampling, scoring and serving over a datastore that processes of a real Ray hold, and some are lost."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retro.cli.main import main
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.jobs.training import train_run
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.spread import SpreadSnapshot
from retro.workspace import Workspace
from tests.serving.conftest import random_model
from tests.serving.live import Live, live, served
from tests.workspaces import small_run

pytestmark = pytest.mark.slow
PROMPT = "The licence permits anyone to use copy modify and share this software without any"
WINDOWS = ["--window", "32", "--stride", "16", "--num-neighbours", "1", "2"]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Path:
    """A workspace with a run, and a datastore of several segments, searched by this process."""
    run, work = small_run(static_encoder), Workspace(tmp_path_factory.mktemp("held") / "work")
    ingest(work, [str(text_folder)], run.corpus)
    build(work, replace(run.datastore, segment_chunks=100))
    for split in ("train", "valid"):
        find_neighbours(work, split)
    train_run(work, "retro", run.model, run.training)
    assert len(work.datastore().snapshot().segments) > 3
    return work.path


@pytest.fixture
def held(ray: Any, here: Path, tmp_path: Path) -> Iterator[Path]:
    """The same, with its datastore in two parts, each held by two processes."""
    work = Path(shutil.copytree(here, tmp_path / "work"))
    assert main(["db", "engine", str(work), "ray", "--parts", "2", "--replicas", "2"]) == 0
    yield work
    assert main(["db", "engine", str(work), "local"]) == 0


@pytest.fixture
def articles(tmp_path: Path, texts: list[str]) -> Path:
    rows = [{"id": f"a{number}", "text": f"News {number}. {text}"} for number, text in enumerate(texts[:6])]
    path = tmp_path / "articles.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lose(ray: Any, work: Path, *places: tuple[int, int]) -> None:
    """Kill the processes that hold these parts, as part and replica."""
    datastore = Datastore.open(work / "datastore")
    assert isinstance(datastore.snapshot(), SpreadSnapshot)
    setting = datastore.engine_setting()
    assert setting is not None
    actors = datastore.actors(setting)
    for place in places:
        os.kill(ray.get(actors.handle(ray, place).about.remote()).process, signal.SIGKILL)
    datastore.close()


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_samples_are_those_of_a_local_search(
    ray: Any, here: Path, held: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def sample(work: Path) -> dict[str, Any]:
        words = ["sample", str(work), PROMPT, "--max-tokens", "40", "--seed", "3", "--json"]
        found: dict[str, Any] = json.loads(said(capsys, *words))
        return {key: value for key, value in found.items() if "second" not in key and key != "run"}

    expected = sample(here)
    assert expected["retrieval"]
    assert sample(held) == expected
    lose(ray, held, (0, 0), (1, 1))
    assert sample(held) == expected
    lose(ray, held, (0, 1))
    assert sample(held) == expected


def test_scores_are_those_of_a_local_search(
    ray: Any, here: Path, held: Path, articles: Path, tmp_path: Path
) -> None:
    def score(work: Path, name: str) -> dict[str, bytes]:
        out = tmp_path / name
        assert main(["evaluate", str(work), "--on", str(articles), "--out", str(out), *WINDOWS]) == 0
        files = [file for file in out.rglob("*") if file.name in ("results.json", "scores.npz")]
        files += [*out.rglob("neighbours*.npy"), *out.rglob("distances*.npy")]
        assert len(files) > 3
        return {str(file.relative_to(out)): file.read_bytes() for file in files}

    expected = score(here, "here")
    assert score(held, "held") == expected
    lose(ray, held, (0, 0), (1, 1))
    assert score(held, "lost") == expected


def test_answers_of_a_server_are_those_of_a_local_search_while_processes_are_lost(
    ray: Any, here: Path, held: Path, static_encoder: str
) -> None:
    model = random_model(static_encoder)

    def ask(server: Live, number: int) -> tuple[str, str]:
        answer = server.complete(f"{PROMPT} {number}", max_tokens=24, min_tokens=24, temperature=0)
        sources = json.dumps(answer["sources"]).replace(server.url, "URL")
        return answer["choices"][0]["text"], sources

    numbers = range(12)
    with live(served(Workspace(here), model)) as server:
        expected = [ask(server, number) for number in numbers]
    assert all("distances" in sources for _, sources in expected)
    with live(served(Workspace(held), model)) as server:
        assert [ask(server, number) for number in numbers] == expected
        losing = threading.Thread(target=lose, args=(ray, held, (0, 1), (1, 0)))
        losing.start()
        found = [ask(server, number) for _ in range(3) for number in numbers]
        losing.join()
        assert found == expected * 3
        assert [ask(server, number) for number in numbers] == expected
