"""The same work by the code of an earlier revision and by this tree, call by call in turns.

    python benchmarks/in_turns.py REVISION WORK … [--rounds 5] [--threads 1] [--tokens 1024]

WORK is a training step, such as RETRO-float32, RETRO-bfloat16, baseline-…, RETROfit-… (`utilisation.py`), or
scoring-0,1,2,4,10: a batch of four windows of licences with these k at once (`scoring_several.py`). Each
tree has a process of its own, and the two never work at the same time. Printed is how many times as fast
this tree is: the median over rounds of the ratio of processor time, its extremes, and the same by the clock.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from before_and_after import HERE, unpack

WORKSPACE = Path(tempfile.gettempdir()) / "retro-several-benchmark"


def training(name: str, precision: str, num_tokens: int) -> Callable[[], object]:
    from step_profile import model_of
    from utilisation import step_of

    model, k = model_of(name)
    return step_of(model, k=k, dtype=getattr(torch, precision), num_tokens=num_tokens)


def scoring(ks: list[int]) -> Callable[[], object]:
    from scoring_several import STRIDE, prepared, score

    from retro import recipes
    from retro.model.retro import Retro
    from retro.scoring.windows import batch_inputs, batch_targets, batches_of, windows_of
    from scoring import WINDOW, spread

    neighbours = prepared(WORKSPACE)
    store, config = neighbours.store, recipes.tiny().model
    vocab_size = store.artifact.counts["vocab_size"]
    torch.manual_seed(0)
    model = Retro(dataclasses.replace(config, vocab_size=vocab_size, pad_id=store.pad_id)).eval()
    (windows,) = spread(list(batches_of(windows_of(store, WINDOW, STRIDE), 4 * WINDOW)), 1)
    tokens, *retrieved = batch_inputs(neighbours.table, windows, neighbours, max(ks))
    batch = [tokens, batch_targets(store, windows), *retrieved]
    return lambda: score(model, batch, ks, together=True)


def work_of(name: str, num_tokens: int) -> Callable[[], object]:
    kind, _, rest = name.partition("-")
    if kind == "scoring":
        return scoring([int(k) for k in rest.split(",")])
    return training(kind, rest, num_tokens)


def child(name: str, threads: int, num_tokens: int) -> None:
    """Work once for every line that is read, and tell the seconds: of the processor, and by the clock."""
    from retro.machine import keep_freed_memory

    torch.set_num_threads(threads)
    keep_freed_memory()
    work = work_of(name, num_tokens)
    for _ in sys.stdin:
        started = (time.process_time(), time.perf_counter())
        work()
        print(json.dumps([time.process_time() - started[0], time.perf_counter() - started[1]]), flush=True)


@contextlib.contextmanager
def worker(tree: Path, name: str, threads: int, num_tokens: int) -> Iterator[Callable[[], list[float]]]:
    """A process with a tree's code that works when it is called."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    command = [sys.executable, __file__, "--child", name]
    command += ["--threads", str(threads), "--tokens", str(num_tokens)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout

        def work() -> list[float]:
            asked.write("\n")
            asked.flush()
            seconds: list[float] = json.loads(told.readline())
            return seconds

        try:
            yield work
        finally:
            asked.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("revision", nargs="?")
    parser.add_argument("work", nargs="*", default=["RETRO-float32", "RETRO-bfloat16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.threads, options.tokens)
        return
    if any(name.startswith("scoring") for name in options.work):
        from scoring_several import prepared

        prepared(WORKSPACE)  # not by two processes at once
    with tempfile.TemporaryDirectory() as folder:
        unpack(options.revision, Path(folder))
        for name in options.work:
            with (
                worker(Path(folder), name, options.threads, options.tokens) as before,
                worker(HERE, name, options.threads, options.tokens) as after,
            ):
                for call in (before, after, before, after):  # memory is in the process then
                    call()
                rounds = [(before(), after()) for _ in range(options.rounds)]
            for place, clock in enumerate(("processor time", "clock")):
                ratios = [old[place] / new[place] for old, new in rounds]
                seconds = [statistics.median(one[which][place] for one in rounds) for which in (0, 1)]
                print(
                    f"{name}: {statistics.median(ratios):.3f} times as fast by {clock} ({min(ratios):.3f} – "
                    f"{max(ratios):.3f}); {seconds[0]:.3f} and {seconds[1]:.3f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
