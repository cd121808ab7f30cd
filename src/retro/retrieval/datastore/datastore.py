"""The datastore: the key-value memory of the paper, which can grow and forget while it is read."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from retro.corpus.documents import Document
from retro.errors import ArtifactError
from retro.retrieval.datastore.difference import Synced
from retro.retrieval.datastore.ledger import FILE
from retro.retrieval.datastore.reader import DatastoreReader
from retro.retrieval.datastore.segment_writer import EmbedShards
from retro.retrieval.datastore.writer import Writer
from retro.retrieval.embedder import embed_shards
from retro.stages.executor import Executor
from retro.stages.hints import with_paths
from retro.stages.progress import Progress, no_progress


class Datastore(DatastoreReader):
    """A datastore that is searched and changed. Every change is a version; every search is of one version."""

    @staticmethod
    def open(path: str | Path) -> "Datastore":
        """Open a finished datastore."""
        path = Path(path)
        if not (path / FILE).exists():
            raise ArtifactError(
                f"{path} is no finished datastore; expected a folder with {FILE}; "
                f"run: {with_paths('retro build WORK', path)}"
            )
        return Datastore(path)

    def add(
        self,
        documents: Iterable[Document],
        progress: Progress = no_progress,
        executor: Executor | None = None,
    ) -> int:
        """Add documents, all or none, and return the new version. An id that is there already is an error.

        With an executor its workers make the keys, and the codes of those that are indexed.
        """
        with Writer(self, self.embedding(executor), executor) as writer:
            return writer.add(documents, progress)

    def sync(
        self,
        documents: Iterable[Document],
        progress: Progress = no_progress,
        executor: Executor | None = None,
    ) -> Synced:
        """Bring the sources of these documents to the state that is given: one version, or none if they are.

        Documents that are new are added, those whose text or title is another are replaced, and those of the
        same sources that are not given are deleted. With an executor its workers make the keys, and the codes
        of those that are indexed.
        """
        with Writer(self, self.embedding(executor), executor) as writer:
            return writer.sync(documents, progress)

    def embedding(self, executor: Executor | None) -> EmbedShards | None:
        """How the keys of new chunks are made: by the executor's workers, or else by this process."""
        if executor is None:
            return None
        return partial(embed_shards, executor, self.embedder)

    def delete(
        self,
        ids: Sequence[str] = (),
        sources: Sequence[str] = (),
        titles: Sequence[str] = (),
        content_hashes: Sequence[str] = (),
    ) -> int:
        """Delete documents by id, source, title or content hash, and return how many.

        No search that starts from now on returns them; `compact` removes their bytes.
        """
        with Writer(self) as writer:
            return writer.delete(ids, sources, titles, content_hashes)

    def merge(self, progress: Progress = no_progress, executor: Executor | None = None) -> int:
        """Merge small segments and index what is searched key by key, if it is worthwhile; the version.

        `add` and `sync` do it by themselves. Others may search meanwhile. With an executor its workers make
        the codes of what is indexed.
        """
        with Writer(self, executor=executor) as writer:
            return writer.merge(progress)

    def use_engine(
        self,
        address: str,
        collection: str = "",
        progress: Progress = no_progress,
        parts: int = 0,
        replicas: int = 0,
    ) -> None:
        """Have a search engine find the keys: `milvus:http://host:19530`, `milvus:FILE.db`, or `ray`.

        It is filled first, and follows every change from then on. The ledger keeps its address. With
        `ray:HOST:PORT`, or `ray` for the cluster of RAY_ADDRESS, processes of a cluster hold the datastore in
        so many parts, each in so many replicas. `local` is this machine's own indexes.
        """
        with Writer(self) as writer:
            writer.use_engine(address, collection, progress, parts, replicas)

    def compact(self, progress: Progress = no_progress, executor: Executor | None = None) -> int:
        """Remove what was deleted from every file, join small segments, and return the new version.

        The tokenizer stays: a word of a deleted document that had become a token of its own can still be
        read there. `info.tokens_of_deleted` counts such tokens beforehand. With an executor its workers make
        the codes of what is indexed.
        """
        with Writer(self, executor=executor) as writer:
            return writer.compact(progress)
