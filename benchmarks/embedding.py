"""Embedding chunks against a plain `AutoModel` loop: chunks a second as a ratio, and whether the neighbours
are the same.

    python benchmarks/embedding.py

The text is the first articles of enwik8, cut into chunks of 64 tokens of a quickly trained tokenizer. The
plain loop takes batches of 32 in arrival order, padded to the batch's longest, in float32 with two threads
and no gradients. Ours is `embed_shards` with two workers, as the datastore is built, whose keys are
float16; the workers are started beforehand. The overlap counts the ten nearest other chunks of every chunk.
"""

from collections.abc import Iterator
from itertools import islice

import faiss
import numpy as np
import torch
import transformers
from timing import interleaved_medians

from retro import catalogue
from retro.corpus.readers import read
from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_model
from retro.machine import has_bfloat16
from retro.retrieval.embedder import Embedder, embed_shards, open_embedder
from retro.retrieval.embedder.bert import MAX_WORD_PIECES
from retro.stages.executor import LocalExecutor

CORES, CHUNK_LEN = 2, 64
ARTICLES, CHUNKS, SHARD = 300, 2048, 512
STATIC_COPIES = 8


def read_chunks() -> list[str]:
    """Texts of chunks in the order of the articles."""
    texts = [document.text for document in islice(read("enwik8"), ARTICLES)]
    tokenizer = SentencePieceTokenizer(train_model(texts, 16_000))

    def chunks() -> Iterator[str]:
        for text in texts:
            tokens = tokenizer.encode(text)
            yield from (
                tokenizer.decode(tokens[start : start + CHUNK_LEN])
                for start in range(0, len(tokens), CHUNK_LEN)
            )

    return list(islice((chunk for chunk in chunks() if chunk.strip()), CHUNKS))


@torch.inference_mode()
def plain_loop(
    tokenizer: transformers.PreTrainedTokenizerBase, model: torch.nn.Module, texts: list[str]
) -> np.ndarray:
    keys = []
    for start in range(0, len(texts), 32):
        batch = tokenizer(
            texts[start : start + 32],
            padding=True,
            truncation=True,
            max_length=MAX_WORD_PIECES,
            return_tensors="pt",
        )
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
        keys.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    return np.concatenate(keys)


def ours(executor: LocalExecutor, embedder: Embedder, texts: list[str]) -> np.ndarray:
    shards = (texts[start : start + SHARD] for start in range(0, len(texts), SHARD))
    return np.concatenate(list(embed_shards(executor, embedder, shards)))


def neighbours(keys: np.ndarray) -> np.ndarray:
    index = faiss.IndexFlatL2(keys.shape[1])
    index.add(keys.astype(np.float32))
    rows: np.ndarray = index.search(keys.astype(np.float32), 11)[1]
    return rows


def overlap_at_10(keys: np.ndarray, others: np.ndarray) -> float:
    """Part of the ten nearest that two sets of keys share, the chunk itself left aside."""
    pairs = zip(neighbours(keys).tolist(), neighbours(others).tolist(), strict=True)
    return float(
        np.mean([len((set(a) & set(b)) - {row}) / len(set(a) - {row}) for row, (a, b) in enumerate(pairs)])
    )


def main() -> None:
    for name in ("enwik8", "minilm", "static"):
        catalogue.fetch(name)
    torch.set_num_threads(CORES)
    texts, executor, static, minilm = (
        read_chunks(),
        LocalExecutor(CORES),
        open_embedder("static"),
        open_embedder("minilm"),
    )
    folder = str(catalogue.folder_of("minilm"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    truth = plain_loop(tokenizer, model, texts)
    overlap = overlap_at_10(truth, ours(executor, minilm, texts))
    quick = open_embedder("minilm", "bfloat16") if has_bfloat16(torch.device("cpu")) else None
    seconds = interleaved_medians(
        {
            "plain": lambda: plain_loop(tokenizer, model, texts),
            "ours": lambda: ours(executor, minilm, texts),
            "one process": lambda: minilm.embed(texts),
            "static": lambda: static.embed(texts * STATIC_COPIES),
            **({"bfloat16": lambda: quick.embed(texts)} if quick else {}),
        },
        rounds=3,
        warmup=0,  # the overlap has warmed both up
    )
    rate = {name: len(texts) / value for name, value in seconds.items()}
    print(
        f"{len(texts)} chunks: plain loop {rate['plain']:.0f} a second, ours {rate['ours']:.0f}, "
        f"in one process {rate['one process']:.0f}"
    )
    print(
        f"embedding is {rate['ours'] / rate['plain']:.2f} times as fast as the plain loop (aim ≥ 1.5); "
        f"in one process {rate['one process'] / rate['plain']:.2f} times"
    )
    print(f"overlap@10 of the float16 keys with the plain loop's float32 {overlap:.4f} (aim ≥ 0.99)")
    if quick:
        print(
            f"with bfloat16 products, where the hardware has them, {rate['bfloat16'] / rate['plain']:.2f} "
            "times the plain loop; "
            f"overlap@10 {overlap_at_10(truth, quick.embed(texts)):.4f}"
        )
    print(
        f"the static encoder makes {rate['static'] * STATIC_COPIES:.0f} keys a second, "
        f"{rate['static'] * STATIC_COPIES / rate['ours']:.0f} times as many"
    )


if __name__ == "__main__":
    main()
