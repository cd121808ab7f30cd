"""Memory: the most that a stage holds, all its processes together, as the text grows.

The rival of the whole text is a quarter of it: a ratio near 1 says that memory does not grow with the
corpus. Resident memory is read from /proc every 20 ms; what processes share is counted for each.
"""

import subprocess
import sys
import time
from pathlib import Path

from ingest_memory import INTERVAL, resident_bytes, tree, write_jsonl

from retro import catalogue
from retro.corpus.readers import read
from speed.rows import Row, Spread

PARTS = {"a quarter of the text": 0.25, "all of the text": 1.0}
ARTICLES = 2400
STAGES = {
    "ingest": ["ingest", "{text}", "--out", "{work}", "--vocab-size", "4096", "--workers", "2"],
    "build": ["build", "{work}", "--embedder", "static", "--segment-chunks", "10000"],
    "neighbours": ["neighbours", "{work}"],
    "train": ["train", "{work}", "--num-steps", "3", "--warmup-steps", "1", "--validate-every", "3"],
}


def peak_of(arguments: list[str]) -> float:
    """The most megabytes that a command's processes held together."""
    peak = 0
    command = [sys.executable, "-m", "retro", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(resident_bytes, tree(process.pid))))
            time.sleep(INTERVAL)
        errors = process.stderr.read().decode() if process.stderr else ""
    if process.returncode:
        raise SystemExit(f"retro {' '.join(arguments)} failed: {errors.strip()}")
    return peak / 1e6


def measure(work: Path, quick: bool) -> list[Row]:
    for name in ("enwik8", "static"):
        catalogue.fetch(name)
    documents = list(read("enwik8"))[: 40 if quick else ARTICLES]
    folder = work / "memory"
    folder.mkdir(parents=True, exist_ok=True)
    peaks: dict[str, dict[str, float]] = {}
    for part, share in PARTS.items():
        some = documents[: int(share * len(documents))]
        text = write_jsonl(some, folder / f"{share:g}.jsonl")
        place = folder / f"work-{share:g}-{time.time_ns()}"
        for stage, words in STAGES.items():
            print(f"  {stage}, {part}", flush=True)
            peak = peak_of([word.format(text=text, work=place) for word in words])
            peaks.setdefault(stage, {})[f"{part}, {text.stat().st_size / 1e6:.1f} MB"] = peak
    return [_row(stage, found) for stage, found in peaks.items()]


def _row(stage: str, found: dict[str, float]) -> Row:
    (part, small), (whole, large) = found.items()
    spreads = [Spread(value, value, value) for value in (large, small, small / large)]
    return Row(
        what=f"peak memory, retro {stage}",
        size=whole,
        unit="MB",
        ours=spreads[0],
        rival=part,
        theirs=spreads[1],
        times=spreads[2],
    )
