"""Threads that wait: a training step on a quiet machine, and beside a process that computes too.

    python benchmarks/busy_machine.py [--rounds 3] [--steps 8]

OpenMP's threads spin for a while when they have nothing to do, which takes the core from whoever could use
it. Each policy is a child process of its own, since it is read when the library is loaded. The neighbour
multiplies matrices with one thread. Median seconds of a step of the demo's RETRO, and of one cached token
of sampling; ratios to the library's default in the same surroundings.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

POLICIES: dict[str, dict[str, str]] = {
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "spin 1,000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10,000": {"GOMP_SPINCOUNT": "10000"},
    "spin 100,000": {"GOMP_SPINCOUNT": "100000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
NEIGHBOUR = "import torch; torch.set_num_threads(1); a = torch.randn(1024, 1024)\nwhile True: a @ a"


@contextmanager
def surroundings(name: str) -> Iterator[None]:
    """Nothing, or a process that keeps one core busy."""
    if name == "quiet":
        yield
        return
    with subprocess.Popen([sys.executable, "-c", NEIGHBOUR]) as neighbour:
        try:
            time.sleep(3)  # until it has loaded and computes
            yield
        finally:
            neighbour.kill()


def measure(steps: int) -> dict[str, float]:
    """Median seconds in this process, whose environment has the policy."""
    import torch

    from retro.machine import keep_freed_memory
    from retro.model.retro import Retro
    from retro.recipes import tiny
    from retro.training.objective import TokenLoss

    keep_freed_memory()
    run = tiny()
    model = Retro(run.model)
    loss = TokenLoss(model)
    tokens = torch.randint(1, run.model.vocab_size, (8, 513))
    neighbours = torch.randint(1, run.model.vocab_size, (8, 8, 2, 128))
    mask = torch.ones(8, 8, 2, dtype=torch.bool)

    def step() -> None:
        model.zero_grad()
        loss(tokens[:, :-1], tokens[:, 1:], neighbours, mask).backward()

    trained = median(step, steps)
    model.eval()
    decoding = model.begin()
    decoding.prefill([tokens[0, :64].tolist()], neighbours[:1, :1], mask[:1, :1])

    def token() -> None:
        if decoding.completing:
            decoding.step([5], neighbours[0, :1], mask[0, :1])
        else:
            decoding.step([5])

    return {"training step": trained, "cached token": median(token, 20 * steps)}


def median(call: Callable[[], None], rounds: int) -> float:
    call()
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.steps)))
        return
    for place in ("quiet", "busy"):
        seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for _ in range(options.rounds):
            for policy, variables in POLICIES.items():
                command = [sys.executable, __file__, "--child", "--steps", str(options.steps)]
                with surroundings(place):
                    done = subprocess.run(
                        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
                    )
                for what, value in json.loads(done.stdout).items():
                    seconds[what][policy].append(value)
        for what, by_policy in seconds.items():
            medians = {policy: statistics.median(values) for policy, values in by_policy.items()}
            for policy, value in medians.items():
                ratio = value / medians["default"]
                print(f"{place:>5} {what:>13} {policy:>12} {1000 * value:8.1f} ms {ratio:6.2f} of default")


if __name__ == "__main__":
    main()
