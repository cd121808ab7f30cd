"""The live side of retrieval: chunks in, their neighbours out."""

from collections.abc import Sequence

import numpy as np

from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.retrieval.datastore.datastore import Datastore, Neighbour
from retro.retrieval.index import Entries


class Retriever:
    """Searches a datastore for chunks of tokens, or for texts."""

    def __init__(self, datastore: Datastore, num_neighbours: int = 2) -> None:
        if num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours is {num_neighbours}; expected at least 1; switch retrieval off instead"
            )
        self.datastore, self.num_neighbours = datastore, num_neighbours

    @property
    def tokenizer(self) -> Tokenizer:
        return self.datastore.tokenizer

    @property
    def chunk_len(self) -> int:
        return self.datastore.chunk_len

    def search(
        self,
        chunks: Sequence[np.ndarray | str],
        k: int | None = None,
        sources: Sequence[str] = (),
        exclude: Sequence[str] = (),
    ) -> list[list[Neighbour]]:
        """The k nearest neighbours of each chunk, given as tokens or as text; fewer if there are no more, none for a blank one.

        Where no k is given it is the retriever's own.
        Only documents of the given sources are found, if any are given, and none whose id is excluded.
        """
        texts = [
            chunk if isinstance(chunk, str) else self.tokenizer.decode(chunk.tolist()) for chunk in chunks
        ]
        return self.datastore.search(texts, self.num_neighbours if k is None else k, sources, exclude)

    def values(self, chunks: Sequence[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
        """[N, F] of the k nearest neighbours of each chunk, all padding where there is none, and the mask of the real ones."""
        texts = [self.tokenizer.decode(chunk.tolist()) for chunk in chunks]
        asked = [number for number, text in enumerate(texts) if text.strip()]
        found = np.full((len(chunks), k), -1, dtype=np.int64)
        with self.datastore.reading() as snapshot:
            if asked:
                keys = self.datastore.embedder.embed([texts[number] for number in asked])
                found[asked] = snapshot.search(Entries(keys, [chunks[number] for number in asked]), k)[1]
            return snapshot.values(found), found >= 0
