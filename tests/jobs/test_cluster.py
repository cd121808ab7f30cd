"""A real Ray cluster of two machines, one of which is lost in the middle of every stage."""

import random
import re
import secrets
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.machines import PATIENCE, SOURCE, Machine, python, two_machines, wait_until

DRIVER = """
import sys
from retro.cli.main import main
from retro.corpus import reading, text
from retro.retrieval import finding
from retro.retrieval.datastore import segment_writer
from retro.scoring import bits_per_byte

# So small that every stage has dozens of shards.
reading.UNIT_BYTES, text.SHARD_BYTES = 30_000, 10_000
segment_writer.SHARD, finding.QUERIES, bits_per_byte.PART = 128, 128, 1
sys.exit(main(sys.argv[1:]))
"""
SPREAD = """
import sys
import time
from pathlib import Path

import numpy as np

from retro.cli.main import main
from retro.retrieval.datastore import Datastore
from retro.retrieval.index import Entries

work, source, embedder, address, signals = sys.argv[1:]
signals = Path(signals)

def run(*arguments):
    print(">", *arguments[:2], flush=True)
    assert main([*arguments]) == 0

def found():
    snapshot = Datastore.open(work + "/datastore").snapshot()
    keys = Entries(np.concatenate([segment.keys[::40] for segment in snapshot.segments]))
    return snapshot.search(keys, 5)

def wait_for(name):
    while not (signals / name).exists():
        time.sleep(0.1)

run("ingest", source, "--out", work, "--vocab-size", "400", "--workers", "1")
settings = "--chunk-len 16 --segment-chunks 1500 --exact-below 500 --workers 1".split()
run("build", work, "--embedder", embedder, *settings)
expected = found()
run("db", "engine", work, address, "--parts", "2", "--replicas", "2")
run("db", "info", work)
searches = 0
while not (signals / "stop").exists():
    assert all(np.array_equal(*pair) for pair in zip(found(), expected))
    (signals / f"search-{searches}").touch()
    searches += 1
run("db", "delete", work, "--id", "000.txt")
run("db", "info", work)
(signals / "searched").touch()
wait_for("joined")
run("db", "engine", work)
run("db", "info", work)
run("db", "engine", work, "local")
"""
"""Builds a datastore, has the cluster hold it, and searches it again and again until it is told to stop."""
PORT = 6379
TASK = "ray::call"
"""The title of a worker's process while it works."""
MODEL = shlex.split(
    "--model.d-model 32 --model.num-layers 2 --model.num-heads 2 --model.head-dim 16 --model.ffw-dim 64 "
    "--model.chunk-len 16 --model.retrieval.cross-attention-layers 2 --model.retrieval.encoder.d-model 32 "
    "--model.retrieval.encoder.num-heads 2 --model.retrieval.encoder.head-dim 16 "
    "--model.retrieval.encoder.ffw-dim 64 --model.retrieval.encoder.num-layers 1 --seq-len 128 "
    "--batch-size 2 --num-steps 4 --warmup-steps 1 --precision float32"
)
SCORING = shlex.split("--window 128 --stride 64 --batch-size 2 --num-neighbours 1 2 --leakage-neighbours 2")


@dataclass
class Cluster:
    """The machine of the command and of one worker, and the machine of the other worker."""

    head: Machine
    other: Machine
    home: Path
    token: str
    """Without it nobody may use the cluster."""

    def environment(self) -> dict[str, str]:
        address = f"{self.head.address}:{PORT}"
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_ADDRESS": address}

    def join(self, mounts: str = "") -> None:
        """Start the other machine's worker, again if it was lost."""
        options = ["--address", f"{self.head.address}:{PORT}", "--node-ip-address", self.other.address]
        self.other.run(ray("start", *options), mounts, **self.environment())

    def command(self, *arguments: str, workers: str = "ray") -> list[str]:
        own = ["--executor", "ray"] if workers == "ray" else ["--workers", workers]
        return python("-c", DRIVER, *arguments, *own)

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.head.start(self.command(*arguments), **self.environment())


def ray(*arguments: str) -> list[str]:
    small = ["--num-cpus", "1", "--object-store-memory", "100000000", "--disable-usage-stats"]
    return python("-m", "ray.scripts.scripts", *arguments, *small)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("ray")
    # A short path, as the names of sockets below it are bounded.
    with tempfile.TemporaryDirectory(prefix="retro-ray-", dir="/tmp") as folder, two_machines() as machines:
        head, other = machines
        options = ["--head", "--node-ip-address", head.address, "--port", str(PORT), "--temp-dir", folder]
        made = Cluster(head, other, tmp_path_factory.mktemp("cluster"), secrets.token_hex(32))
        environment = {**made.environment(), "RAY_ADDRESS": ""}
        head.run(ray("start", *options, "--include-dashboard", "false"), **environment)
        yield made


@pytest.fixture(scope="module")
def source(cluster: Cluster, texts: list[str]) -> Path:
    """A folder of about 1.2 MB."""
    rng = random.Random(0)
    folder = cluster.home / "source"
    folder.mkdir()
    lines = sorted({line for text in texts for line in text.splitlines()[2:]})
    words = sorted({word for line in lines for word in line.split()})
    for number in range(240):
        own = [" ".join(rng.choices(words, k=12)) for _ in range(30)]
        text = f"Document {number}\n\n" + "\n".join([*rng.choices(lines, k=40), *own])
        (folder / f"{number:03d}.txt").write_text(text)
    more = cluster.home / "more"
    more.mkdir()
    for number in range(60):
        (more / f"{number}.txt").write_text("\n".join([f"More {number}", *rng.choices(lines, k=60)]))
    return folder


@dataclass(frozen=True)
class Stage:
    """A command that is cut into shards, and when it is in the middle of them."""

    name: str
    arguments: tuple[str, ...]
    halfway: Callable[[Path], bool]


def several(pattern: str) -> Callable[[Path], bool]:
    """Whether some shards of a stage that is not finished are there."""
    return lambda work: len(list(work.glob(pattern))) >= 3


def stages(work: Path, source: Path, embedder: str) -> list[Stage]:
    folder = str(work)
    small = ["--vocab-size", "400", "--valid-fraction", "0.1", "--test-fraction", "0.1"]
    keys = f"--embedder {embedder} --chunk-len 16 --num-neighbours 4".split()
    return [
        Stage("reading", ("ingest", str(source), "--out", folder, *small), several("text.partial/*.zst")),
        Stage("build", ("build", folder, *keys), several("datastore.partial/segments/*.partial/shards/*")),
        Stage("neighbours", ("neighbours", folder), several("neighbours/*.partial/scratch/blocks/*")),
        Stage(
            "evaluate",
            ("evaluate", folder, "retro", *SCORING),
            several("evaluations/retro/test.partial/scratch/*/*"),
        ),
        Stage(
            "db add",
            ("db", "add", folder, str(source.parent / "more")),
            several("datastore/segments/*.partial/shards/*"),
        ),
    ]


def contents(folder: Path) -> dict[str, bytes]:
    """All files but two: the ledger, and an index's record, tell how quick the index was measured to be."""
    own = ("catalogue.sqlite", "index.json")
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(own)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.slow
def test_a_machine_is_lost_in_the_middle_of_every_stage(
    cluster: Cluster, source: Path, bert: str, capsys: pytest.CaptureFixture[str]
) -> None:
    work = cluster.home / "work"
    found = {}
    lost: dict[str, int] = {}
    for workers in ("1", "2", "ray"):
        for stage in stages(work, source, bert):
            if stage.name == "evaluate" and workers == "1":
                cluster.head.run(python("-m", "retro", "train", str(work), *MODEL))
                shutil.copytree(work / "runs", cluster.home / "runs")
            elif stage.name == "evaluate":
                shutil.copytree(cluster.home / "runs", work / "runs")
            if workers != "ray":
                cluster.head.run(cluster.command(*stage.arguments, workers=workers))
                continue
            cluster.join()
            process = cluster.start(*stage.arguments)
            wait_until(lambda stage=stage: stage.halfway(work) and cluster.other.is_doing(TASK), process)
            lost[stage.name] = len(cluster.other.processes())
            cluster.other.kill()
            _, errors = process.communicate(timeout=PATIENCE)
            assert process.returncode == 0, errors
        found[workers] = contents(work)
        work.rename(cluster.home / f"work-{workers}")
    with capsys.disabled():
        print(f"\nprocesses of the lost machine, by stage: {lost}")  # noqa: T201
    assert len(list((cluster.home / "work-ray" / "text").glob("*.zst"))) > 50
    for workers in ("2", "ray"):
        assert found[workers].keys() == found["1"].keys()
        assert not [name for name in found["1"] if found[workers][name] != found["1"][name]], workers


@pytest.mark.slow
def test_a_machine_is_lost_in_the_middle_of_searching(
    cluster: Cluster, source: Path, static_encoder: str, tmp_path: Path
) -> None:
    """It holds all parts of the datastore, as the other one does."""
    work, few, address = cluster.home / "spread", tmp_path / "few", f"ray:{cluster.head.address}:{PORT}"
    few.mkdir()
    for file in sorted(source.iterdir())[:40]:
        shutil.copy(file, few)
    cluster.join()
    command = python("-c", SPREAD, str(work), str(few), static_encoder, address, str(tmp_path))
    process = cluster.head.start(command, **cluster.environment())

    def num_searches() -> int:
        return len([*tmp_path.glob("search-*")])

    wait_until(lambda: num_searches() > 3, process)
    assert cluster.other.is_doing("ray::Keeper")
    cluster.other.kill()
    before = num_searches()
    wait_until(lambda: num_searches() > before + 5, process)
    (tmp_path / "stop").touch()
    wait_until((tmp_path / "searched").exists, process)
    cluster.join()
    (tmp_path / "joined").touch()
    printed, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors
    cluster.other.kill()
    spread, alone, again = (" ".join(part.split()) for part in printed.split("> db info")[1:])
    first, second = cluster.head.address, cluster.other.address
    for number in (1, 2):
        both = rf"part {number} on ({first}, {second}|{second}, {first})"
        assert re.search(both, spread), spread
        # The lost node's processes are held by the one that is left, until there is another again.
        assert f"part {number} on {first}, {first}" in alone
        assert re.search(both, again), again


@pytest.mark.slow
def test_a_worker_that_cannot_do_the_work_says_so_and_nothing_is_lost(
    cluster: Cluster, source: Path, bert: str
) -> None:
    work = cluster.home / "refused"
    work.mkdir()
    other = cluster.home / "package"
    shutil.copytree(SOURCE / "retro", other / "retro", ignore=shutil.ignore_patterns("__pycache__"))
    wording = other / "retro" / "wording.py"
    wording.write_text(wording.read_text() + "\n# Another version.\n")
    ingest = stages(work, source, bert)[0].arguments
    wrongs = {
        f"mount --bind {other} {SOURCE}": "runs retro .* expected .*, as here; install the same package",
        f"mount -t tmpfs none {work}": f"does not see {work} as it is here; expected the same files",
        f"mount -t tmpfs none {cluster.home}": "does not see .* as it is here; expected the same files",
    }
    for mounts, expected in wrongs.items():
        cluster.join(mounts)
        process = cluster.start(*ingest)
        _, errors = process.communicate(timeout=PATIENCE)
        cluster.other.kill()
        assert process.returncode == 1, errors
        (said,) = [line for line in errors.splitlines() if line.startswith("retro ingest: ")]
        assert re.search(expected, said), said
    # What was finished before it was refused is kept.
    assert list(work.glob("text.partial/scratch/units/*"))
    cluster.join()
    process = cluster.start(*ingest)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 0
    cluster.other.kill()


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token_is_not_joined_without_it(cluster: Cluster, source: Path) -> None:
    command = cluster.command("ingest", str(source), "--out", str(cluster.home / "no-token"))
    environment = {**cluster.environment(), "RAY_AUTH_TOKEN": "0" * 64}
    process = cluster.head.start(command, **environment)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert re.search(r"retro ingest: the Ray cluster .* could not be joined .*token", errors), errors
