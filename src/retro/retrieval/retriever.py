"""The live side of retrieval: a complete chunk in, its neighbours out."""

from collections.abc import Sequence

import numpy as np

from retro.corpus.tokenizer import Tokenizer
from retro.errors import ConfigError
from retro.retrieval.datastore import Datastore, Neighbour


class Retriever:
    """Searches a datastore for chunks of tokens. Documents in `exclude`, by id or content hash, are never returned."""

    def __init__(self, datastore: Datastore, num_neighbours: int = 2, exclude: Sequence[str] = ()) -> None:
        if num_neighbours < 1:
            raise ConfigError(f"num_neighbours is {num_neighbours}; expected at least 1; switch retrieval off instead")
        self.datastore, self.num_neighbours, self.exclude = datastore, num_neighbours, tuple(exclude)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.datastore.tokenizer

    @property
    def chunk_len(self) -> int:
        return self.datastore.config.chunk_len

    def search(
        self, chunks: Sequence[np.ndarray], k: int, sources: Sequence[str] = (), exclude: Sequence[str] = ()
    ) -> list[list[Neighbour]]:
        """At most k neighbours of each chunk, nearest first; none for a blank one."""
        if sources:
            raise ConfigError(f"this datastore cannot search by source, but {list(sources)} was asked for; expected no sources")
        texts = [self.tokenizer.decode(chunk.tolist()) for chunk in chunks]
        found = iter(self.datastore.search([text for text in texts if text.strip()], k, (*self.exclude, *exclude)))
        return [next(found) if text.strip() else [] for text in texts]
