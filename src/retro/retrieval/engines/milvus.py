"""Milvus (extra `milvus`): a file of Milvus Lite in this process, or a cluster by its address."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from retro.errors import ConfigError, MissingExtraError
from retro.retrieval.engines.engine import EngineLostError, Holding
from retro.retrieval.index.protocol import Found

TOKEN = "RETRO_MILVUS_TOKEN"
"""The environment's variable with the token of a cluster that wants one; it is written nowhere."""
CHUNK, DOCUMENT, KEY = "chunk", "document", "key"
FIRST, LINEAGE, INDEX = "retro.first", "retro.lineage", "retro.index"
"""Properties of the collection, which say what it holds."""
EXACT_BELOW = 50_000
"""Fewer keys are searched exactly, as they are here."""
EXACT, GRAPH = "FLAT", "HNSW"
PARAMETERS = {EXACT: {}, GRAPH: {"M": 24, "efConstruction": 200}}
ROWS = 4096
"""Chunks that are sent at once."""
NUMBERS = 16_384
"""Numbers of neighbours that are asked for at once, over all queries."""
LONGEST = 1000
"""Documents that a filter names; longer ones are left to the caller."""
SECONDS = 60.0
"""How long an answer may take."""
Answer = TypeVar("Answer")


class MilvusEngine:
    """A collection of Milvus with a graph over the keys (HNSW), or none if they are few.

    Keys are kept in float32, as Lite has no other. A file of Lite serves one process at a time; a cluster any
    number of them.
    """

    most = 16_384

    def __init__(self, where: str, collection: str) -> None:
        is_address = where.startswith(("http://", "https://", "tcp:", "unix:"))
        if not is_address and not where.endswith(".db"):
            raise ConfigError(
                f"{where!r} is no place of Milvus; expected an address such as http://host:19530, or a file "
                "of Milvus Lite whose name ends in .db"
            )
        self.where = where if is_address else str(Path(where).absolute())
        self.collection = collection
        self._client: Any = None
        self._is_loaded = False
        self._opening = threading.Lock()

    def _ask(self, call: Callable[[Any], Answer]) -> Answer:
        """The answer of a call to the client, which is made when it is first needed."""
        library = milvus_library()
        try:
            with self._opening:
                if self._client is None:
                    token = os.environ.get(TOKEN, "")
                    self._client = library.MilvusClient(self.where, token=token, timeout=SECONDS)
            return call(self._client)
        # gRPC and Lite have errors of their own kinds, and no common one.
        except Exception as error:  # noqa: BLE001
            reason = " ".join(str(getattr(error, "message", "") or error).split())
            raise EngineLostError(
                f"Milvus at {self.where} does not answer ({reason}); expected its collection "
                f"{self.collection}; start it again"
            ) from None

    def holding(self) -> Holding | None:
        found = self._properties()
        return None if found is None else Holding(found.get(FIRST, ""), found.get(LINEAGE, ""))

    def _properties(self) -> dict[str, str] | None:
        def look(client: Any) -> dict[str, str] | None:
            if not client.has_collection(self.collection):
                return None
            found: dict[str, str] = client.describe_collection(self.collection).get("properties", {})
            return found

        return self._ask(look)

    def fits(self, num_keys: int) -> bool:
        return self._kind() == GRAPH or num_keys < 2 * EXACT_BELOW

    def _kind(self) -> str:
        return (self._properties() or {}).get(INDEX, GRAPH)

    def begin(self, width: int, num_keys: int, holding: Holding) -> None:
        kinds = milvus_library().DataType
        kind = EXACT if num_keys < EXACT_BELOW else GRAPH

        self._is_loaded = False

        def create(client: Any) -> None:
            if client.has_collection(self.collection):
                client.drop_collection(self.collection)
            schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field(CHUNK, kinds.INT64, is_primary=True)
            schema.add_field(DOCUMENT, kinds.INT64)
            schema.add_field(KEY, kinds.FLOAT_VECTOR, dim=width)
            index = client.prepare_index_params()
            index.add_index(KEY, index_type=kind, metric_type="L2", params=PARAMETERS[kind])
            # Strong: what was written before a search began is found by it.
            client.create_collection(
                self.collection,
                schema=schema,
                index_params=index,
                properties={FIRST: holding.first, LINEAGE: holding.lineage, INDEX: kind},
                consistency_level="Strong",
            )

        self._ask(create)

    def put(self, chunks: np.ndarray, documents: np.ndarray, keys: np.ndarray) -> None:
        for start in range(0, len(chunks), ROWS):
            part = slice(start, start + ROWS)
            wide = keys[part].astype(np.float32)
            rows = [
                {CHUNK: chunk, DOCUMENT: document, KEY: key}
                for chunk, document, key in zip(
                    chunks[part].tolist(), documents[part].tolist(), wide, strict=True
                )
            ]
            self._ask(lambda client, rows=rows: client.upsert(self.collection, rows))  # type: ignore[misc]

    def remove(self, documents: Sequence[int]) -> None:
        for start in range(0, len(documents), LONGEST):
            named = _among(documents[start : start + LONGEST])
            self._ask(lambda client, named=named: client.delete(self.collection, filter=named))  # type: ignore[misc]

    def finish(self, holding: Holding) -> None:
        def seal(client: Any) -> None:
            client.flush(self.collection)
            client.alter_collection_properties(self.collection, {LINEAGE: holding.lineage})

        self._ask(seal)

    def efforts(self) -> list[int]:
        return [0] if self._kind() == EXACT else [32, 64, 128, 256, 512, 1024]

    def search(
        self,
        queries: np.ndarray,
        k: int,
        effort: int,
        documents: Sequence[int] | None = None,
        without: Sequence[int] = (),
    ) -> Found:
        distances = np.full((len(queries), k), np.inf, dtype=np.float32)
        chunks = np.full((len(queries), k), -1, dtype=np.int64)
        wanted = _filter(documents, without)
        self._load()
        # Lite is slow where it finds many for many at once, and a cluster bounds the product of the two.
        step = max(1, NUMBERS // k)
        for start in range(0, len(queries), step):
            part = queries[start : start + step]
            asked = {
                "data": list(part.astype(np.float32)),
                "limit": k,
                "filter": wanted,
                "anns_field": KEY,
                "search_params": {"params": {"ef": max(effort, k)} if effort else {}},
                "output_fields": [CHUNK],
            }
            answers = self._ask(lambda client, asked=asked: client.search(self.collection, **asked))  # type: ignore[misc]
            for row, answer in enumerate(answers, start=start):
                distances[row, : len(answer)] = [hit["distance"] for hit in answer]
                chunks[row, : len(answer)] = [hit[CHUNK] for hit in answer]
        return distances, chunks

    def _load(self) -> None:
        """Have the collection in the engine's memory, where searches find it; Lite forgets it at its end."""
        if not self._is_loaded:
            self._ask(lambda client: client.load_collection(self.collection))
            self._is_loaded = True

    def close(self) -> None:
        with self._opening:
            self._is_loaded = False
            if self._client is not None:
                self._client.close()
                self._client = None


def _among(documents: Sequence[int]) -> str:
    return f"{DOCUMENT} in {[int(number) for number in documents]}"


def _filter(documents: Sequence[int] | None, without: Sequence[int]) -> str:
    """Milvus's own filter, as far as it is short enough."""
    parts = []
    if documents is not None and len(documents) <= LONGEST:
        parts.append(_among(documents))
    if 0 < len(without) <= LONGEST:
        parts.append(f"not ({_among(without)})")
    return " and ".join(parts)


def milvus_library() -> Any:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it writes past our own lines to the terminal
    try:
        import pymilvus
    except ImportError:
        raise MissingExtraError("pymilvus", "milvus") from None
    # It prints a trace of every error that it raises, and Lite one of every call that it does not know.
    for name in ("pymilvus.decorators", "grpc._server"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return pymilvus
