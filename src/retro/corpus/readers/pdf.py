"""PDF files: the text of their pages, where there is any."""

import importlib
import io
import logging
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retro.corpus.documents import Document
from retro.corpus.readers.problems import Kind, Problems
from retro.corpus.readers.records import FieldMap
from retro.corpus.readers.streams import BROKEN, open_stream
from retro.errors import MissingExtraError
from retro.wording import counted

DAMAGED = (
    *(*BROKEN, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError),
    *(RecursionError, NotImplementedError, zlib.error, struct.error),
)
"""What pypdf raises on files that are not as the format says, besides its own errors."""


def read_pdf(file: Path, name: str, source: str, _: FieldMap, problems: Problems) -> Iterator[Document]:
    """The pages as one document, an empty line between them; called by its title, if it has one."""
    where = str(file)
    size = file.stat().st_size
    try:
        pdf: Any = importlib.import_module("pypdf")
    except ImportError:
        problems.add_missing(where, MissingExtraError("pypdf", "pdf"), size)
        return
    # Every oddity of a file is a warning there; what matters is told as a problem here.
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    try:
        with open_stream(file) as stream:
            # At once, as pypdf reads here and there, and the progress counts each byte that is read.
            content = io.BytesIO(stream.read())
        reader = pdf.PdfReader(content)
        # Many files are locked against printing alone, and open with an empty password.
        if reader.is_encrypted and not reader.decrypt(""):
            problems.add(where, "is encrypted; expected a PDF without a password; unlock it", size=size)
            return
        pages = [page.extract_text().strip() for page in reader.pages]
        title = str((reader.metadata and reader.metadata.title) or "").strip()
    except (pdf.errors.PyPdfError, pdf.errors.DependencyError, *DAMAGED) as error:
        reason = f"{type(error).__name__}: {error}"
        problems.add(where, f"cannot be read ({reason}); expected a whole PDF; fetch it again", size=size)
        return
    text = "\n\n".join(page for page in pages if page)
    if text:
        yield Document(id=name, text=_whole(text) + "\n", source=source, title=_whole(title) or name)
    else:
        reason = f"has {counted(len(pages), 'page')} and no text, as a scan has; make its pictures text (OCR)"
        problems.add(where, reason, Kind.NO_TEXT, size)


def _whole(text: str) -> str:
    """The text without halves of surrogate pairs, which UTF-8 cannot hold."""
    return text.encode(errors="replace").decode()
