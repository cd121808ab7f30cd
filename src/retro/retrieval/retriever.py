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

    def __call__(self, chunk: np.ndarray) -> list[Neighbour]:
        """The nearest neighbours of a chunk; none if it is blank."""
        text = self.tokenizer.decode(chunk.tolist())
        return self.datastore.search([text], self.num_neighbours, self.exclude)[0] if text.strip() else []
