"""A copy of a datastore that may be changed, for measurements that add and delete."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from retro.retrieval.datastore.datastore import Datastore
from retro.retrieval.datastore.ledger import FILE
from retro.stages.files import link_or_copy, locked


@contextmanager
def copied(datastore: Datastore, scratch: Path | None) -> Iterator[Datastore]:
    """A copy below `scratch`, or in the system's folder for temporary files, which is removed afterwards.

    Segments are immutable, so links to their files are enough.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        path = Path(folder) / "datastore"
        # Locked, so that no writer changes the folder between the copy of its segments and of
        # its ledger.
        with locked(datastore.path):
            shutil.copytree(
                datastore.path, path, ignore=shutil.ignore_patterns(f"{FILE}*"), copy_function=link_or_copy
            )
            # SQLite copies the ledger itself: the file alone would lack what is in its
            # write-ahead log.
            datastore.ledger.rows("VACUUM INTO ?", (str(path / FILE),))
        copy = Datastore.open(path)
        # The embedder is loaded already and serves both.
        copy.use(datastore.embedder)
        try:
            yield copy
        finally:
            copy.close()
