"""The benchmarks of an earlier revision beside those of this tree, each with its own code, taking turns.

    python benchmarks/before_and_after.py REVISION [NAME …] [--rounds 1] [--minutes 10]

A name may have options of its own: "sampling --rounds 3". The earlier code fetches into a cache of its own.
Lines that differ only in their numbers are paired; of several rounds the median of every number is shown.
"""

import argparse
import io
import os
import re
import shlex
import statistics
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from every import BENCHMARKS

HERE = Path(__file__).parents[1]
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?![\w])")

Line = tuple[str, int]
"""A line without its numbers, and how often it was printed before."""


def unpack(revision: str, folder: Path) -> None:
    packed = subprocess.run(["git", "archive", revision], cwd=HERE, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def run(tree: Path, benchmark: str, minutes: float) -> str:
    """What a benchmark of a tree prints; said so if it is not there, fails, or takes too long."""
    name, *arguments = shlex.split(benchmark)
    script = tree / "benchmarks" / f"{name}.py"
    if not script.exists():
        return f"{name} is not in this revision"
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    if tree != HERE:
        (tree / "cache").mkdir(exist_ok=True)
        # Scripts keep what they prepare in the temporary folder, which must not be shared either.
        environment |= {"RETRO_CACHE_DIR": str(tree / "cache"), "TMPDIR": str(tree / "cache")}
    try:
        done = subprocess.run(
            [sys.executable, str(script), *arguments],
            env=environment,
            cwd=tree,
            capture_output=True,
            text=True,
            timeout=60 * minutes,
        )
    except subprocess.TimeoutExpired as late:
        printed = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
        return f"{printed}\nstopped after {minutes:g} minutes"
    if done.returncode:
        return f"{done.stdout}\nfailed: {done.stderr.strip().splitlines()[-1]}"
    return done.stdout


def numbers_of(text: str) -> Iterator[tuple[Line, list[float]]]:
    met: Counter[str] = Counter()
    for line in filter(None, (" ".join(line.split()) for line in text.splitlines())):
        shape = NUMBER.sub("#", line)
        yield (shape, met[shape]), [float(number.replace(",", "")) for number in NUMBER.findall(line)]
        met[shape] += 1


def shown(shape: str, runs: list[list[float]]) -> str:
    medians = iter([statistics.median(values) for values in zip(*runs, strict=True)])
    return re.sub("#", lambda _: f"{next(medians):.4g}", shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision")
    parser.add_argument("names", nargs="*", default=BENCHMARKS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        unpack(options.revision, Path(folder))
        trees = {"before": Path(folder), "after": HERE}
        for name in options.names:
            printed: dict[str, dict[Line, list[list[float]]]] = {which: defaultdict(list) for which in trees}
            for _ in range(options.rounds):
                for which, tree in trees.items():
                    for line, numbers in numbers_of(run(tree, name, options.minutes)):
                        printed[which][line].append(numbers)
            print(f"# {name}", flush=True)
            for line in dict.fromkeys(line for lines in printed.values() for line in lines):
                for which, lines in printed.items():
                    if line in lines:
                        print(f"{which:>6}  {shown(line[0], lines[line])}", flush=True)


if __name__ == "__main__":
    main()
