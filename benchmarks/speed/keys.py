"""Keys: chunks a second, beside sentence-transformers, the plain `AutoModel` loop and the products."""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
import transformers
from embedding import CORES, ours, overlap_at_10, plain_loop, read_chunks
from peer import SENTENCES, bring

from retro import catalogue
from retro.machine import has_bfloat16
from retro.retrieval.embedder import open_embedder
from retro.stages.executor import LocalExecutor
from speed.limits import PRODUCT, product, product_name
from speed.rows import Rounds, Row

ROUNDS, CHUNKS = 5, 1024
JOINED = {64: 1, 128: 2}
"""Chunks of 64 tokens that make one text of the size."""


def measure(work: Path, quick: bool) -> list[Row]:
    for name in ("enwik8", "minilm", "static"):
        catalogue.fetch(name)
    torch.set_num_threads(CORES)
    chunks = read_chunks()[: 128 if quick else CHUNKS]
    rows = []
    with closing(LocalExecutor(CORES)) as executor:
        for length, joined in JOINED.items():
            texts = [" ".join(chunks[start : start + joined]) for start in range(0, len(chunks), joined)]
            rows += list(_of_length(executor, length, texts, 1 if quick else ROUNDS))
    return rows


def _of_length(executor: LocalExecutor, length: int, texts: list[str], rounds: int) -> Iterator[Row]:
    folder = str(catalogue.folder_of("minilm"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    sentences = bring(SENTENCES, "sentence_transformers").SentenceTransformer(folder, device="cpu")
    precisions = ["float32", *(["bfloat16"] if has_bfloat16(torch.device("cpu")) else [])]
    embedders = {name: open_embedder("minilm", name) for name in precisions}
    static = open_embedder("static")
    calls: dict[str, Callable[[], object]] = {
        "plain loop": lambda: plain_loop(tokenizer, model, texts),
        "sentence-transformers": lambda: sentences.encode(texts, show_progress_bar=False),
        "static": lambda: static.embed(texts),
    }
    for name, embedder in embedders.items():
        calls[name] = partial(ours, executor, embedder, texts)
        calls[f"product {name}"] = product(getattr(torch, name))
    truth = plain_loop(tokenizer, model, texts)
    # Their own float32 keys are what the others' neighbours are held against.
    overlaps = {name: overlap_at_10(truth, np.asarray(calls[name]())) for name in precisions}
    rounds_ = Rounds(calls, rounds, warmup=1)
    flops = flops_of(model.config, [len(ids) for ids in tokenizer(texts, truncation=True)["input_ids"]])
    size = f"{len(texts):,} chunks of {length} tokens"
    for rival in ("sentence-transformers", "plain loop"):
        for name in precisions:
            dtype = getattr(torch, name)
            yield rounds_.row(
                name,
                len(texts),
                what=f"keys, MiniLM, {name}, overlap@10 {overlaps[name]:.4f}",
                size=size,
                unit="chunks/s",
                rival=rival,
                rival_name="plain `AutoModel` loop" if rival == "plain loop" else rival,
                limit=f"product {name}",
                limit_name=product_name(dtype),
                work=flops / PRODUCT,
            )
    yield rounds_.row(
        "static",
        len(texts),
        what="keys, static table",
        size=size,
        unit="chunks/s",
        rival=precisions[-1],
        rival_name=f"ours, MiniLM, {precisions[-1]}",
    )


def flops_of(config: transformers.PretrainedConfig, lengths: list[int]) -> float:
    """FLOPs of the encoder's matrix products over the real word pieces alone."""
    width, hidden = config.hidden_size, config.intermediate_size
    linear = 2.0 * (4 * width * width + 2 * width * hidden) * sum(lengths)
    attention = sum(4.0 * length * length * width for length in lengths)
    return config.num_hidden_layers * (linear + attention)
