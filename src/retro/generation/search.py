"""What is retrieved for a request, and when."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from retro.errors import ConfigError
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Searcher


@dataclass(frozen=True, kw_only=True)
class Retrieval:
    """What is retrieved for one request."""

    num_neighbours: int | None = None
    """Neighbours of each chunk; the retriever's own number if none is given. Where fewer are found, the rest is masked."""
    every: int = 1
    """Only every so many chunks retrieve; those between have no neighbours, and the model goes on as RETRO[OFF] behind them."""
    sources: tuple[str, ...] = ()
    """Only documents of these sources; empty: all."""
    exclude: tuple[str, ...] = ()
    """Documents, by id or content hash, that must not be retrieved."""

    def __post_init__(self) -> None:
        if self.num_neighbours is not None and self.num_neighbours < 1:
            raise ConfigError(
                f"num_neighbours is {self.num_neighbours}; expected at least 1; switch retrieval off instead"
            )
        if self.every < 1:
            raise ConfigError(f"every is {self.every}; expected at least 1, which retrieves at each chunk")

    def find(self, searcher: Searcher, chunks: Sequence[tuple[int, Sequence[int]]]) -> list[list[Neighbour]]:
        """Neighbours of numbered chunks, in one search; the first chunk of a sequence has number 0."""
        due = [place for place, (number, _) in enumerate(chunks) if (number + 1) % self.every == 0]
        found: list[list[Neighbour]] = [[] for _ in chunks]
        if due:
            k = self.num_neighbours or searcher.num_neighbours
            wanted = [np.array(chunks[place][1]) for place in due]
            for place, neighbours in zip(
                due, searcher.search(wanted, k, self.sources, self.exclude), strict=True
            ):
                found[place] = neighbours
        return found
