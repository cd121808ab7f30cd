"""Whether `retro plan` tells the truth: its costs beside real runs at three sizes.

python benchmarks/plan.py --embedder minilm --sizes 1M 4M 16M --out plan.json

Every size is ingested from modules of the installed packages, built, searched and trained on for some
steps, each with one worker and one thread. The plan is measured on modules in another order, of which a few
may be the same. Times are the processor's, so other work on the machine may go on. The last column is the
larger of the two divided by the smaller; the aim is at most 1.2.
"""

import argparse
import json
import random
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import faiss
import torch

from retro import recipes
from retro.config import CorpusConfig, DatastoreConfig, ModelConfig, TrainingConfig
from retro.corpus.documents import Document
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build, find_neighbours
from retro.jobs.training import train_run
from retro.planning.calibration import TEXT_BYTES, VOCAB_SIZE, calibrate
from retro.planning.coefficients import Coefficients
from retro.planning.cost import parse_tokens, plan_costs
from retro.planning.speed import processor_seconds
from retro.stages.executor import LocalExecutor
from retro.workspace import Workspace

AIM = 1.2
LONGEST = 30_000
"""Bytes of a document. How often a search is repeated to look past the chunk's own document hangs on the few
longest ones, of which a small sample tells little."""


@dataclass(frozen=True)
class Real:
    """What the stages took at one size."""

    tokens: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Row:
    """A stage at one size, in seconds of the processor."""

    tokens: int
    stage: str
    planned: float
    real: float

    @property
    def off(self) -> float:
        return max(self.real / self.planned, self.planned / self.real)


def modules(seed: int) -> Iterator[Document]:
    """Modules of installed packages, no two alike and none very long, in an order by chance."""
    files = sorted(Path(sysconfig.get_path("purelib")).rglob("*.py"))
    random.Random(seed).shuffle(files)
    seen: set[str] = set()
    for file in files:
        text = file.read_text(errors="replace")
        if text.strip() and len(text.encode()) <= LONGEST and text not in seen:
            seen.add(text)
            yield Document(str(len(seen)), text, "modules")


def write_text(path: Path, num_bytes: float) -> None:
    """A file of so much text."""
    written = 0
    with path.open("w") as file:
        for document in modules(seed=0):
            if written >= num_bytes:
                return
            file.write(json.dumps({"id": document.id, "text": document.text}) + "\n")
            written += len(document.text.encode())
    raise SystemExit(f"the installed packages have {written:,} bytes of text; expected {num_bytes:,.0f}")


def find_all(work: Workspace) -> None:
    for split in work.corpus().stores():
        find_neighbours(work, split)


def settings(steps: int) -> tuple[ModelConfig, TrainingConfig]:
    """A small model, and how it is trained: steps, and one validation and checkpoint at the end."""
    run = recipes.get("tiny")
    model = replace(run.model, chunk_len=DatastoreConfig().chunk_len, vocab_size=VOCAB_SIZE)
    training = replace(
        run.training, num_steps=steps, warmup_steps=1, validate_every=10**6, checkpoint_every=10**6
    )
    return model, training


def run_stages(num_bytes: float, embedder: str, steps: int) -> Real:
    """What every stage takes at one size."""
    model, training = settings(steps)
    keys = DatastoreConfig(embedder=embedder)
    corpus = CorpusConfig(vocab_size=VOCAB_SIZE, valid_fraction=0.01, test_fraction=0.01)
    with tempfile.TemporaryDirectory(prefix="retro-plan-") as folder:
        work = Workspace(Path(folder) / "work")
        source = Path(folder) / "text.jsonl"
        write_text(source, num_bytes)
        alone = LocalExecutor(1)
        seconds = {
            "ingest": processor_seconds(lambda: ingest(work, [str(source)], corpus, executor=alone)),
            "keys and index": processor_seconds(lambda: build(work, keys, executor=alone)),
            "neighbours": processor_seconds(lambda: find_all(work)),
            "training": processor_seconds(lambda: train_run(work, "retro", model, training)),
        }
        tokens = sum(len(store.tokens) for store in work.corpus().stores().values())
    return Real(tokens, seconds)


def compare(known: Coefficients, real: Real, steps: int) -> list[Row]:
    """What was planned beside what it took."""
    costs = plan_costs(known, real.tokens, *settings(steps))
    planned = {stage.name: stage.seconds for stage in costs.stages}
    planned["keys and index"] = planned["keys"] + planned["index"]
    return [Row(real.tokens, name, planned[name], seconds) for name, seconds in real.seconds.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sizes", nargs="+", default=["1M", "4M", "16M"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--calibrated-on", type=int, default=TEXT_BYTES, help="bytes of text to measure with")
    parser.add_argument("--real", type=Path, help="an earlier --out, whose real runs are compared again")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    known = calibrate(options.embedder, documents=modules(seed=1), text_bytes=options.calibrated_on)
    earlier = json.loads(options.real.read_text())["real"] if options.real else []
    runs = [Real(**run) for run in earlier]
    rows = [row for run in runs for row in compare(known, run, options.steps)]
    show(rows)
    for size in [] if runs else options.sizes:
        num_bytes = parse_tokens(size) * known.bytes_per_token
        runs.append(run_stages(num_bytes, options.embedder, options.steps))
        new = compare(known, runs[-1], options.steps)
        show(new)
        rows += new
    print(f"worst: {max(row.off for row in rows):.2f}; the aim: {AIM}")
    if options.out:
        record = {
            "rows": [{**asdict(row), "off": row.off} for row in rows],
            "real": [asdict(run) for run in runs],
            "coefficients": asdict(known),
        }
        options.out.write_text(json.dumps(record, indent=2))


def show(rows: list[Row]) -> None:
    for row in rows:
        print(f"{row.tokens:>12,} {row.stage:<16} {row.planned:10.1f} s {row.real:10.1f} s  {row.off:.2f}")


if __name__ == "__main__":
    main()
