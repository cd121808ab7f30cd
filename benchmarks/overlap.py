"""The longest common substring of chunks and neighbours, against a plain dynamic programme and difflib.

    python benchmarks/overlap.py [--pairs 100000]

Chunks of 64 tokens with ten neighbours of 128 each, which are cut out of one text with Zipf's law, a third
of the chunks with a run copied into a neighbour. The two in plain Python are timed on a part of the pairs
and reckoned up.
"""

import argparse
import difflib
import time

import numpy as np

from retro.retrieval.overlap import longest_common_substring

CHUNK, RETRIEVED, NEIGHBOURS, VOCABULARY, PLAIN_CHUNKS = 64, 128, 10, 4096, 20


def make_pairs(num_chunks: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    text = np.minimum(rng.zipf(1.3, size=1 << 20), VOCABULARY - 1)
    chunks, retrieved = (
        text[rng.integers(0, len(text) - length, size=shape)[..., None] + np.arange(length)]
        for shape, length in (((num_chunks,), CHUNK), ((num_chunks, NEIGHBOURS), RETRIEVED))
    )
    for chunk, length in zip(
        range(0, num_chunks, 3), rng.integers(4, CHUNK, size=num_chunks).tolist(), strict=False
    ):
        retrieved[chunk, 0, 20 : 20 + length] = chunks[chunk, :length]
    return chunks, retrieved


def plain(tokens: list[int], others: list[int]) -> int:
    """The dynamic programme as one writes it down."""
    longest, before = 0, [0] * (len(others) + 1)
    for token in tokens:
        runs = [0] * (len(others) + 1)
        for place, other in enumerate(others):
            if token == other:
                runs[place + 1] = before[place] + 1
                longest = max(longest, runs[place + 1])
        before = runs
    return longest


def library(tokens: list[int], others: list[int]) -> int:
    return difflib.SequenceMatcher(None, tokens, others, autojunk=False).find_longest_match().size


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=100_000)
    num_chunks = parser.parse_args().pairs // NEIGHBOURS
    chunks, retrieved = make_pairs(num_chunks)
    started = time.perf_counter()
    found = longest_common_substring(chunks, retrieved, 0)
    ours = (time.perf_counter() - started) / (num_chunks * NEIGHBOURS)
    print(
        f"{num_chunks * NEIGHBOURS:,} pairs of {CHUNK} × {RETRIEVED} tokens: "
        f"{ours * num_chunks * NEIGHBOURS:.2f} s, {ours * 1e6:.1f} µs a pair"
    )
    for name, longest in (("a plain dynamic programme", plain), ("difflib", library)):
        started = time.perf_counter()
        expected = [
            max(longest(chunk, neighbour) for neighbour in of_chunk)
            for chunk, of_chunk in zip(
                chunks[:PLAIN_CHUNKS].tolist(), retrieved[:PLAIN_CHUNKS].tolist(), strict=True
            )
        ]
        seconds = (time.perf_counter() - started) / (PLAIN_CHUNKS * NEIGHBOURS)
        assert found[:PLAIN_CHUNKS].tolist() == expected
        print(f"  {seconds / ours:.0f} times {name} ({seconds * 1e6:.0f} µs a pair)")


if __name__ == "__main__":
    main()
