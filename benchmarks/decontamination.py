"""Decontamination against datasketch's MinHash and MinHashLSH: the same documents, permutations, bands and
rows.

    python benchmarks/decontamination.py

2,000 training documents of 1,000 to 5,000 random tokens as uint16, 200 held-out ones, 20 near-duplicates
planted; 13-grams, 128 permutations, one thread. datasketch is timed twice: fed with the bytes of each
n-gram, as its documentation shows, and fed with our own vectorised integer hashes, so that only its
permutations and its index are left. Ours is timed twice too: with the exact comparison of every candidate,
and without it, as datasketch leaves it out. datasketch takes a part of the documents in each round and is
scaled by tokens, since it would take minutes.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from timing import interleaved_medians

from retro.catalogue.fetching import cache_dir
from retro.corpus.decontamination import NUM_PERM, PROBABILITY, find_candidates, find_contaminated
from retro.corpus.minhash import lsh_parameters, ngram_hashes

REQUIREMENTS = ("datasketch==2.0.0", "scipy==1.17.1")
"""scipy is what datasketch itself imports; neither is a dependency of the project."""
N, THRESHOLD = 13, 0.8
DOCUMENTS, HELD_OUT, PLANTED, PART = 2000, 200, 20, 10

Tokens = NDArray[np.uint16]


def datasketch() -> Any:
    """The module, installed beside the project on the first call."""
    folder = cache_dir() / "peers" / REQUIREMENTS[0].replace("==", "-")
    if not folder.exists():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-deps",
                "--target",
                str(folder),
                *REQUIREMENTS,
            ],
            check=True,
        )
    sys.path.insert(0, str(folder))
    import datasketch

    return datasketch


def make_documents() -> tuple[list[Tokens], list[Tokens]]:
    rng = np.random.default_rng(0)
    held_out, documents = (
        [rng.integers(0, 32_000, rng.integers(1000, 5000)).astype(np.uint16) for _ in range(number)]
        for number in (HELD_OUT, DOCUMENTS)
    )
    for number in range(PLANTED):
        documents[number * PART] = held_out[number][: int(len(held_out[number]) * 0.9)]
    return documents, held_out


def as_bytes(tokens: Tokens) -> list[bytes]:
    windows = np.lib.stride_tricks.sliding_window_view(tokens, N)
    return [window.tobytes() for window in windows]


def as_integers(tokens: Tokens) -> list[int]:
    """datasketch takes 32 bits of a hash."""
    hashes: list[int] = (ngram_hashes([tokens.astype(np.uint32)], N)[0] >> np.uint64(32)).tolist()
    return hashes


def peer(
    library: Any,
    empty: Any,
    documents: list[Tokens],
    held_out: list[Tokens],
    grams: Callable[[Tokens], list[Any]],
) -> int:
    """How many documents have a candidate.

    `empty` is copied for each sketch, which spares drawing the permutations again.
    """

    def sketch(tokens: Tokens) -> Any:
        minhash = empty.copy()
        minhash.update_batch(grams(tokens))
        return minhash

    index = library.MinHashLSH(num_perm=NUM_PERM, params=lsh_parameters(THRESHOLD, NUM_PERM, PROBABILITY))
    for number, tokens in enumerate(held_out):
        index.insert(number, sketch(tokens))
    return sum(bool(index.query(sketch(tokens))) for tokens in documents)


def main() -> None:
    os.environ["RAYON_NUM_THREADS"] = "1"  # rensa would use every core, datasketch uses one
    library = datasketch()
    documents, held_out = make_documents()
    part, part_held_out = documents[::PART], held_out[:PLANTED]
    wide = [tokens.astype(np.uint32) for tokens in held_out]
    plain = library.MinHash(num_perm=NUM_PERM)
    integers = library.MinHash(num_perm=NUM_PERM, hashfunc=lambda value: value)
    found: dict[str, int] = {}

    def noting(name: str, call: Callable[[], int]) -> Callable[[], None]:
        return lambda: found.__setitem__(name, call())

    seconds = interleaved_medians(
        {
            "retro": noting("retro", lambda: len(find_contaminated(documents, held_out, N, THRESHOLD))),
            "candidates": noting(
                "candidates", lambda: sum(1 for _ in find_candidates(documents, wide, N, THRESHOLD))
            ),
            "bytes": noting("bytes", lambda: peer(library, plain, part, part_held_out, as_bytes)),
            "integers": noting("integers", lambda: peer(library, integers, part, part_held_out, as_integers)),
        },
        rounds=5,
        warmup=1,
    )
    tokens, part_tokens = (
        sum(map(len, [*train, *held])) for train, held in ((documents, held_out), (part, part_held_out))
    )
    speed = {
        name: (tokens if name in ("retro", "candidates") else part_tokens) / value
        for name, value in seconds.items()
    }
    print(f"{DOCUMENTS} documents against {HELD_OUT}, {tokens:,} tokens, {PLANTED} planted; found {found}")
    print(
        f"  retro {speed['retro']:,.0f} tokens/s, exact comparison included; {speed['candidates']:,.0f} "
        "without it"
    )
    for name, words in (("bytes", "fed with n-grams as bytes"), ("integers", "fed with our integer hashes")):
        whole, candidates = (speed[side] / speed[name] for side in ("retro", "candidates"))
        print(
            f"  {REQUIREMENTS[0]} {words} {speed[name]:,.0f} tokens/s: retro {whole:.1f} times as fast, "
            f"{candidates:.1f} without it"
        )


if __name__ == "__main__":
    main()
