"""Sampling, one cached token a step: by length, against retro-pytorch, with retrieval against without, and
in batches.

    python benchmarks/sampling.py [--work WORKSPACE] [--keys 200000] [--rounds 7]

Two sizes: the small one of `training_step.py` (decoder 4 × 192, encoder 1 × 128, vocabulary 4096), at which
the peer runs too, and a medium one (8 × 512, encoder 2 × 256, vocabulary 16,384). Chunk 64, k 2,
cross-attention in every third layer or, when small, in layers 2 and 4; float32. Weights are random: they do
not change the time. Without a workspace the datastore is synthetic: random unit keys behind the index that
`retro build` would choose, and the real encoder of queries.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from peer import REQUIREMENT, peer_model
from timing import interleaved_medians

from retro.config import EncoderConfig, ModelConfig, RetrievalConfig
from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_model
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.generation.request import Choice, Request
from retro.generation.sampler import Sampler
from retro.model.decoding import RetroDecoding
from retro.model.retro import Retro
from retro.retrieval.datastore import Neighbour
from retro.retrieval.embedder.embedder import open_embedder
from retro.retrieval.index import Entries, make_index
from retro.retrieval.retriever import Retriever, Searcher
from retro.workspace import Workspace

K, M, VOCAB = 2, 64, 4096
LENGTHS = (64, 512, 2048)


def small(vocab_size: int = VOCAB) -> ModelConfig:
    encoder = EncoderConfig(d_model=128, num_layers=1, num_heads=4, head_dim=32, ffw_dim=512)
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=192,
        num_layers=4,
        num_heads=4,
        head_dim=48,
        ffw_dim=768,
        retrieval=RetrievalConfig(cross_attention_layers=(2, 4), encoder=encoder),
    )


def medium(vocab_size: int = VOCAB) -> ModelConfig:
    encoder = EncoderConfig(d_model=256, num_layers=2, num_heads=4, head_dim=64, ffw_dim=1024)
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=512,
        num_layers=8,
        num_heads=8,
        head_dim=64,
        ffw_dim=2048,
        retrieval=RetrievalConfig(cross_attention_layers=(3, 6), encoder=encoder),
    )


def prefilled(model: Retro, length: int, batch: int = 1) -> RetroDecoding:
    decoding = RetroDecoding(model)
    neighbours = (
        torch.randint(1, VOCAB, (batch, length // M, K, 2 * M)) if model.config.uses_retrieval else None
    )
    decoding.prefill(torch.randint(1, VOCAB, (batch, length)).tolist(), neighbours)
    return decoding


def a_chunk(model: Retro, length: int) -> Callable[[], None]:
    """The 64 steps that end at a length, with the encoder's call for the chunk that they complete."""
    decoding = prefilled(model, length - M)

    def run() -> None:
        decoding.prefill([[1] * (length - M)], torch.ones(1, length // M - 1, K, 2 * M, dtype=torch.long))
        for _ in range(M):
            found = torch.ones(1, K, 2 * M, dtype=torch.long) if decoding.completing else None
            decoding.step([1], found)

    return run


def reading(decoding: RetroDecoding) -> Callable[[], None]:
    """Self-attention's reading of the cache alone, in all layers."""
    x = torch.zeros(decoding.batch, decoding.model.config.d_model)

    @torch.inference_mode()
    def read() -> None:
        for layer in range(decoding.model.config.num_layers):
            decoding.tokens.attend(layer, x)

    return read


def by_length(rounds: int) -> None:
    """A step at each length, beside the reading of the cache; a step makes the cache longer by one token
    only."""
    model = Retro(small()).eval()
    decodings = {length: prefilled(model, length) for length in LENGTHS}
    calls: dict[str, Callable[[], object]] = {}
    for length, decoding in decodings.items():
        calls[f"step {length}"] = lambda decoding=decoding: decoding.step([1])  # type: ignore[misc]
        calls[f"read {length}"] = reading(decoding)
    seconds = interleaved_medians(calls, rounds=20 * rounds, warmup=20)
    first = LENGTHS[0]
    for length in LENGTHS:
        step, read = seconds[f"step {length}"], seconds[f"read {length}"]
        print(
            f"  length {length}: {step / seconds[f'step {first}']:.2f} times the step at {first}; "
            f"attention is {read / step:.0%} of it"
        )
    growth = seconds[f"step {LENGTHS[-1]}"] - seconds[f"step {first}"]
    share = seconds[f"read {LENGTHS[-1]}"] - seconds[f"read {first}"]
    print(
        f"  growth of the step from {first} to {LENGTHS[-1]}: {growth / share:.2f} times the growth of "
        "attention alone"
    )


def against_peer(rounds: int) -> None:
    model, length = Retro(small()).eval(), 512
    peer = peer_model(
        num_tokens=VOCAB,
        max_seq_len=length,
        enc_dim=128,
        enc_depth=1,
        enc_cross_attn_layers=(1,),
        dec_depth=4,
        dec_dim=192,
        dec_cross_attn_layers=(2, 4),
        chunk_size=M,
        heads=4,
    ).eval()
    tokens, neighbours = (
        torch.randint(1, VOCAB, (1, length)),
        torch.randint(1, VOCAB, (1, length // M, K, 2 * M)),
    )

    @torch.inference_mode()
    def forward() -> None:
        peer(tokens, neighbours)

    seconds = interleaved_medians(
        {"chunk": a_chunk(model, length), "prefill": lambda: prefilled(model, length - M), "peer": forward},
        rounds,
    )
    token = (seconds["chunk"] - seconds["prefill"]) / M
    print(
        f"  at length {length}: {seconds['peer'] / token:.0f} times as fast a token as the full forward of "
        f"{REQUIREMENT}"
    )


class Synthetic:
    """A retriever with random keys and values of a wanted number, and the real work of a query: decode,
    embed, search, gather."""

    def __init__(self, tokenizer: Tokenizer, num_keys: int) -> None:
        self.tokenizer, self.chunk_len, self.num_neighbours = tokenizer, M, K
        self.embedder, rng = open_embedder("minilm"), np.random.default_rng(0)
        keys = rng.standard_normal((num_keys, self.embedder.width), dtype=np.float32)
        self.index = make_index("auto", self.embedder.width, num_keys)
        self.index.add(Entries(keys / np.linalg.norm(keys, axis=1, keepdims=True)))
        self.values = rng.integers(3, tokenizer.vocab_size, (num_keys, 2 * M), dtype=np.uint16)

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        keys = self.embedder.embed([self.tokenizer.decode(chunk.tolist()) for chunk in chunks])
        distances, rows = self.index.search(Entries(keys), k)
        return [
            [
                Neighbour(int(row), float(d), self.values[row].astype(np.int64), "", "", "", "")
                for row, d in zip(*pair, strict=True)
            ]
            for pair in zip(rows, distances, strict=True)
        ]


def searcher_of(work: Path | None, num_keys: int) -> Searcher:
    """The datastore to sample with: the one place that knows how it is opened."""
    if work is not None:
        return Retriever(Workspace(work).datastore(), K)
    words = [f"{a}{b}{c}{d}" for a in "bcdfgklmn" for b in "aeiou" for c in "prstvwz" for d in "aeiou"]
    return Synthetic(
        SentencePieceTokenizer(train_model([" ".join(words[start::7]) for start in range(7)] * 3, 2048)),
        num_keys,
    )


@dataclass
class Spent:
    """Seconds within a call."""

    seconds: float = 0.0


@contextmanager
def timed(owner: object, name: str) -> Iterator[Spent]:
    """Add up the time of a method while it is used."""
    spent, method = Spent(), getattr(owner, name)

    def call(*arguments: object) -> object:
        started = time.perf_counter()
        result = method(*arguments)
        spent.seconds += time.perf_counter() - started
        return result

    setattr(owner, name, call)
    yield spent
    delattr(owner, name)


def with_retrieval(searcher: Searcher, config: ModelConfig, title: str, rounds: int) -> None:
    retro, baseline = (Sampler(Retro(c).eval(), searcher) for c in (config, config.baseline()))
    prompt = searcher.tokenizer.decode(list(range(300, 300 + M)))
    # Random weights give flat distributions; the low temperature makes them as peaked as a trained model's,
    # whose head is short.
    count = 4 * M
    request = Request(
        prompts=[prompt], max_tokens=count, choice=Choice(temperature=0.1, top_p=0.9, min_tokens=count)
    )
    with timed(searcher, "search") as search, timed(retro.model, "encode") as encode:
        calls: dict[str, Callable[[], object]] = {
            "on": lambda: retro.generate(request),
            "off": lambda: retro.generate(request, retrieval=False),
            "baseline": lambda: baseline.generate(request),
        }
        calls["on"]()
        search.seconds = encode.seconds = 0.0
        started = time.perf_counter()
        calls["on"]()
        total = time.perf_counter() - started
        shares = (search.seconds / total, encode.seconds / total)
        seconds = interleaved_medians(calls, rounds, warmup=0)
    print(
        f"  {title}: RETRO[ON] {seconds['baseline'] / seconds['on']:.2f} and RETRO[OFF] "
        f"{seconds['baseline'] / seconds['off']:.2f} times the tokens "
        f"a second of the baseline ({count / seconds['baseline']:,.0f}); retrieval is {shares[0]:.0%} and "
        f"the encoder {shares[1]:.0%} of ON's time"
    )
    eight = replace(request, prompts=[prompt] * 8)
    several = interleaved_medians(
        {"alone": calls["on"], "eight": lambda: retro.generate_all(eight)}, rounds, warmup=0
    )
    print(
        f"  {title}: batch 8 has {8 * several['alone'] / several['eight']:.2f} times the throughput of "
        "batch 1, retrieval on"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path)
    parser.add_argument("--keys", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print("time a token by length, small")
    by_length(arguments.rounds)
    print("against the peer, small")
    against_peer(arguments.rounds)
    searcher = searcher_of(arguments.work, arguments.keys)
    origin = f"from {arguments.work}" if arguments.work else f"{arguments.keys:,} synthetic keys"
    print(f"with retrieval, {origin}")
    for title, config in (("small", small), ("medium", medium)):
        with_retrieval(searcher, config(searcher.tokenizer.vocab_size), title, max(3, arguments.rounds // 2))


if __name__ == "__main__":
    main()
