"""Whether `retro plan` tells the truth: its costs beside real runs at three sizes.

python benchmarks/plan.py --embedder minilm --sizes 1M 4M 16M --out plan.json

Every size is ingested from modules of the installed packages, built, searched and trained on for some steps,
each with one worker and one thread; the plan was measured on other text, the standard library's. Times are
the processor's, so other work on the machine may go on. The last column is the larger of the two divided by
the smaller; the aim is at most 1.2.
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
from retro.config import CorpusConfig, DatastoreConfig
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


def run_stages(known: Coefficients, size: str, embedder: str, steps: int) -> list[Row]:
    """Every stage at one size: what was planned beside what it took."""
    run = recipes.get("tiny")
    keys = DatastoreConfig(embedder=embedder)
    model = replace(run.model, chunk_len=keys.chunk_len, vocab_size=VOCAB_SIZE)
    training = replace(
        run.training, num_steps=steps, warmup_steps=1, validate_every=10**6, checkpoint_every=10**6
    )
    corpus = CorpusConfig(vocab_size=VOCAB_SIZE, valid_fraction=0.01, test_fraction=0.01)
    with tempfile.TemporaryDirectory(prefix="retro-plan-") as folder:
        work = Workspace(Path(folder) / "work")
        source = Path(folder) / "text.jsonl"
        write_text(source, parse_tokens(size) * known.bytes_per_token)
        alone = LocalExecutor(1)
        real = {
            "ingest": processor_seconds(lambda: ingest(work, [str(source)], corpus, executor=alone)),
            "keys and index": processor_seconds(lambda: build(work, keys, executor=alone)),
            "neighbours": processor_seconds(lambda: find_all(work)),
            "training": processor_seconds(lambda: train_run(work, "retro", model, training)),
        }
        tokens = sum(len(store.tokens) for store in work.corpus().stores().values())
    costs = plan_costs(known, tokens, model, training)
    planned = {stage.name: stage.seconds for stage in costs.stages}
    planned["keys and index"] = planned["keys"] + planned["index"]
    return [Row(tokens, name, planned[name], seconds) for name, seconds in real.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embedder", default="minilm")
    parser.add_argument("--sizes", nargs="+", default=["1M", "4M", "16M"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--calibrated-on", type=int, default=TEXT_BYTES, help="bytes of text to measure with")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    known = calibrate(options.embedder, documents=modules(seed=1), text_bytes=options.calibrated_on)
    rows: list[Row] = []
    for size in options.sizes:
        for row in run_stages(known, size, options.embedder, options.steps):
            rows.append(row)
            print(
                f"{row.tokens:>12,} {row.stage:<16} {row.planned:10.1f} s {row.real:10.1f} s  {row.off:.2f}"
            )
    print(f"worst: {max(row.off for row in rows):.2f}; the aim: {AIM}")
    if options.out:
        options.out.write_text(json.dumps([{**asdict(row), "off": row.off} for row in rows], indent=2))


if __name__ == "__main__":
    main()
