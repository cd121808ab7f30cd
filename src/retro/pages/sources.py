"""Where neighbours come from: the place in the document, the document's file, and a list of all documents."""

import glob
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import quote

from retro import catalogue
from retro.corpus.folder import CorpusFolder
from retro.retrieval.shared_runs import ColouredNeighbour
from retro.stages.stage import open_artifact
from retro.wording import counted

WORDS = 8
"""How many words of a neighbour a link to its file leads to."""


@dataclass(frozen=True)
class SourceFiles:
    """The files that documents were read from, as far as they are on this machine."""

    roots: Sequence[tuple[str, Path]] = ()
    """The sources' names, and their files or folders."""

    @staticmethod
    def of(text: Path | None, *more: str) -> "SourceFiles":
        """Of the sources that a finished text stage was made from, and of others as a user names them."""
        # Without that stage, as beside a run from elsewhere, there are just no links.
        named = open_artifact(text, "text", "retro ingest").inputs if text and text.exists() else ()
        return SourceFiles([root for name in (*named, *more) if (root := _root(name))])

    def find(self, source: str, document: str) -> Path | None:
        """The file of a document. A record of a larger file, `NAME:LINE`, is in the file NAME."""
        for name, root in self.roots:
            for wanted in (document, document.rpartition(":")[0]):
                if root.is_file() and wanted == root.name:
                    return root
                if wanted and name == source and (file := _below(root, wanted)):
                    return file
        return None


def corpus_words(folder: CorpusFolder) -> str:
    """A workspace's corpus in a line: its sources, documents and tokens."""
    names = str(folder.path)
    if folder.text_path.exists():
        names = ", ".join(open_artifact(folder.text_path, "text", "retro ingest").inputs)
    counts = [store.artifact.counts for store in folder.corpus().stores().values()]
    documents, tokens = (sum(count[name] for count in counts) for name in ("documents", "tokens"))
    return f"{names}: {counted(documents, 'document')}, {counted(tokens, 'token')}"


NOWHERE = SourceFiles()
"""Where no document's file is known."""


def _root(name: str) -> tuple[str, Path] | None:
    """A source's name and its place; none if it has no files here."""
    path = catalogue.folder_of(name) if name in catalogue.ENTRIES else Path(name)
    own = name if name in catalogue.ENTRIES else path.resolve().name
    return (own, path.resolve()) if path.exists() else None


def _below(root: Path, name: str) -> Path | None:
    """The file of this name below a folder, or the only one that is called so but for its suffix."""
    # An id is anybody's text: perhaps no name that a file could have.
    try:
        # A catalogue's documents go by their files' stems.
        found = [root / name] if (root / name).is_file() else list(root.glob(f"{glob.escape(name)}.*"))
    except (OSError, ValueError, NotImplementedError):
        return None
    # One with `..` in it must not lead out of the source.
    inside = [file for file in found if file.resolve().is_relative_to(root)]
    return inside[0] if len(inside) == 1 else None


def source_id(source: str, document: str) -> str:
    """The id that a document has in a page's list of sources."""
    return f"d-{hashlib.sha256(f'{source}/{document}'.encode()).hexdigest()[:10]}"


def origin_html(neighbour: ColouredNeighbour, files: SourceFiles = NOWHERE, listed: bool = False) -> str:
    """A neighbour's document, source, place and distance, with links to the list of sources and the file."""
    name = escape(neighbour.title or neighbour.document)
    if listed:
        name = f'<a href="#{source_id(neighbour.source, neighbour.document)}">{name}</a>'
    parts = [f"<b>{name}</b>", escape(neighbour.source), *_place(neighbour)]
    parts.append(f"distance {neighbour.distance:.2f}")
    file = files.find(neighbour.source, neighbour.document)
    if file is not None:
        parts.append(f'<a href="{escape(file.as_uri() + _fragment(neighbour))}">open the file here</a>')
    return f'<span class="origin" title="{escape(neighbour.document)}">{" · ".join(parts)}</span>'


def _place(neighbour: ColouredNeighbour) -> list[str]:
    place = neighbour.place
    if place is None:
        return []
    return [f"chunk {place.chunk + 1} of {place.num_chunks}, tokens {place.start + 1:,} to {place.end:,}"]


def _fragment(neighbour: ColouredNeighbour) -> str:
    """The part of a link that makes a browser scroll to the first words of a neighbour."""
    lines = "".join(span.text for span in neighbour.neighbour).splitlines()
    # Within one line, since a browser may see the break between two otherwise than we do. The first and the
    # last word may be cut by the chunk's borders.
    longest = max(lines, key=len, default="").split()[1:-1][:WORDS]
    return f"#:~:text={quote(' '.join(longest), safe='').replace('-', '%2D')}" if longest else ""


def sources_html(shown: Iterable[tuple[str, str, ColouredNeighbour]], files: SourceFiles = NOWHERE) -> str:
    """The documents that a page shows neighbours from, each with links to where; nothing if there are none.

    `shown` are the neighbours in their order, each with the id of its place in the page and a name for it.
    """
    documents: dict[tuple[str, str], list[tuple[str, str, ColouredNeighbour]]] = {}
    for anchor, label, neighbour in shown:
        documents.setdefault((neighbour.source, neighbour.document), []).append((anchor, label, neighbour))
    if not documents:
        return ""
    items = "".join(_item(source, document, at, files) for (source, document), at in documents.items())
    return f'<h2 id="sources">Sources</h2><ul class="sources">{items}</ul>'


def _item(
    source: str, document: str, shown: Sequence[tuple[str, str, ColouredNeighbour]], files: SourceFiles
) -> str:
    title = shown[0][2].title
    name = f"{escape(source)}/{escape(document)}"
    file = files.find(source, document)
    if file is not None:
        name = f'<a href="{escape(file.as_uri())}">{name}</a>'
    head = f"<b>{escape(title)}</b> · {name}" if title and title != document else f"<b>{name}</b>"
    places = ", ".join(f'<a href="#{anchor}">{escape(label)}</a>' for anchor, label, _ in shown)
    return f'<li id="{source_id(source, document)}">{head}: shown at {places}</li>'
