"""What the bits of documents come to: for each byte, and as perplexity for each token and each word."""

from dataclasses import dataclass

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.scoring.intervals import Interval, bootstrap


@dataclass(frozen=True)
class Sizes:
    """How long every document is.

    A token is one of the tokenizer's; the end of a document carries no text and is none. A word is what stands between white space in the
    text as it was ingested, whatever the tokenizer makes of it. Published word-level perplexities of Wikitext103 count the end of every
    line as one word more and are the lower for it.
    """

    num_bytes: np.ndarray
    num_tokens: np.ndarray
    num_words: np.ndarray

    @staticmethod
    def of(store: TokenStore, tokenizer: Tokenizer) -> "Sizes":
        words = [
            len(tokenizer.decode(store.document(number).tolist()).split()) for number in range(len(store))
        ]
        return Sizes(store.num_bytes, store.ends - store.starts - 1, np.array(words, dtype=np.int64))


@dataclass(frozen=True)
class Metrics:
    """Three views of the same bits. A perplexity is 2 to the bits of a token or a word, over all documents together."""

    bits_per_byte: Interval
    perplexity_per_token: Interval
    perplexity_per_word: Interval

    @staticmethod
    def read(values: dict[str, dict[str, float]]) -> "Metrics":
        """Back from JSON."""
        return Metrics(**{name: Interval(**value) for name, value in values.items()})


def measure(bits: np.ndarray, sizes: Sizes, documents: np.ndarray | slice = slice(None)) -> Metrics:
    """Metrics of each document's bits, of all documents or of those that are chosen; intervals are over documents."""
    columns = np.stack([bits, sizes.num_bytes, sizes.num_tokens, sizes.num_words], axis=1)[documents]
    per_byte, per_token, per_word = bootstrap(columns, lambda sums: sums[:, :1] / sums[:, 1:])
    return Metrics(per_byte, _perplexity(per_token), _perplexity(per_word))


def _perplexity(bits: Interval) -> Interval:
    return Interval(*(float(np.exp2(value)) for value in (bits.estimate, bits.low, bits.high)))
