"""A fitted model beside what else a user could do with the same base, the same neighbours and the same text.

    python benchmarks/fitting.py WORK RUN [--split test] [--documents 24] [--tokens 1024]
                                 [--window 512] [--k 1 2]

Bits per token of the base, of the fitted model with k neighbours, and of the base with the nearest one or two
in its prompt before every chunk. All rows score the same windows: the beginnings of documents that are drawn
by chance, each with at least that many tokens of context in its window. Gains have a 95 % interval over
documents; tokens a second are those of scoring, the rows taking turns window by window.
"""

import argparse
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from retro.comparators.in_context import InContext
from retro.model.protocol import LanguageModel
from retro.scoring.bits_per_byte import score_batch
from retro.scoring.intervals import relative_gain
from retro.scoring.windows import windows_of
from retro.scoring.wording import percent
from retro.workspace import open_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("run")
    parser.add_argument("--split", default="test")
    parser.add_argument("--documents", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=1024, help="of each document")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    opened = open_run(options.work, options.run)
    model = opened.model
    neighbours = opened.neighbours(options.split)
    store = neighbours.table.store
    drawn = np.random.default_rng(0).permutation(len(store))[: options.documents]
    windows = [
        window
        for window in windows_of(store, options.window, options.window // 2)
        if window.document in drawn and window.stop <= store.starts[window.document] + options.tokens
    ]
    plain = InContext(model)
    rows: dict[str, tuple[LanguageModel, int]] = {"base, retrieval off": (model, 0)}
    rows |= {f"fitted, k = {k}": (model, k) for k in options.k}
    rows |= {f"base, {k} in the prompt every {model.facts.chunk_len}": (plain, k) for k in options.k}
    bits: dict[str, dict[int, float]] = {name: defaultdict(float) for name in rows}
    seconds: dict[str, float] = defaultdict(float)
    num_tokens = 0
    for number, window in enumerate(windows):
        num_tokens += window.score_to - window.score_from
        for name, (scored, k) in rows.items():
            started = time.perf_counter()
            found = score_batch(scored, neighbours.table, [window], neighbours if k else None, k)
            seconds[name] += time.perf_counter() - started
            bits[name][window.document] += float(found.sum())
        if number % 10 == 9:
            print(f"{number + 1} of {len(windows)} windows", flush=True)
    base = np.array(list(bits["base, retrieval off"].values()))
    print(f"{len(base)} documents of {options.split}, {num_tokens:,} tokens, windows of {options.window}")
    for name in rows:
        found = np.array(list(bits[name].values()))
        gain = percent(relative_gain(found, base))
        speed = num_tokens / seconds[name]
        print(
            f"{name:<36} {found.sum() / num_tokens:.4f} bits a token, saves {gain:<26} {speed:,.0f} tokens/s"
        )


if __name__ == "__main__":
    main()
