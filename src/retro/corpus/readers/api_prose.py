"""The prose of web APIs, out of botocore's service descriptions (JSON)."""

import gzip
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from retro.corpus.documents import Document

BLOCKS = frozenset(
    {"p", "li", "ul", "ol", "dl", "dt", "dd", "note", "important", "h1", "h2", "h3", "h4", "table", "tr"}
    | {"pre", "br", "div"}
)
"""Tags that begin or end a line."""


def latest_services(folder: Path) -> Iterator[tuple[str, Path]]:
    """Each service with its newest description: the older ones say nearly the same."""
    newest: dict[str, Path] = {}
    for file in sorted(folder.glob("*/*/service-2.json.gz")):
        newest[file.parent.parent.name] = file  # the versions are dates, so the last is the newest
    yield from newest.items()


def documents_of_service(file: Path, service: str) -> Iterator[Document]:
    """One document for the service and one for each operation: what it does, then its fields, level by level.

    What several operations share is described with the first of them only.
    """
    with gzip.open(file, "rb") as stream:
        description: dict[str, Any] = json.load(stream)
    name = description["metadata"].get("serviceFullName", service)
    overview = to_text(description.get("documentation", ""))
    if overview:
        yield Document(
            id=service, text=f"{name}\n\n{overview}\n", source="api-prose", title=name, language="en"
        )
    described: set[str] = set()
    for operation, details in description.get("operations", {}).items():
        parts = [to_text(details.get("documentation", ""))]
        for reference in [details.get("input"), details.get("output"), *details.get("errors", [])]:
            if reference:
                parts += _describe(reference["shape"], description["shapes"], described)
        prose = "\n\n".join(part for part in parts if part)
        if prose:
            text = f"{operation}\n\n{prose}\n"
            title = f"{name}: {operation}"
            yield Document(
                id=f"{service}/{operation}", text=text, source="api-prose", title=title, language="en"
            )


def _describe(first: str, shapes: dict[str, Any], described: set[str]) -> Iterator[str]:
    """The documentation of a shape and of all that it is made of, breadth first, each shape once."""
    # Shapes refer to each other, some in circles; those described before end the walk.
    queue = [first]
    while queue:
        shape_name = queue.pop(0)
        if shape_name in described:
            continue
        described.add(shape_name)
        shape = shapes[shape_name]
        if own := to_text(shape.get("documentation", "")):
            yield f"{shape_name}: {own}"
        for member, reference in shape.get("members", {}).items():
            if prose := to_text(reference.get("documentation", "")):
                yield f"{member}: {prose}"
        parts = [
            *shape.get("members", {}).values(),
            *(shape[key] for key in ("member", "key", "value") if key in shape),
        ]
        queue += [reference["shape"] for reference in parts]


def to_text(markup: str) -> str:
    """The words of an HTML fragment, one block a line."""
    collector = _Text()
    collector.feed(markup)
    collector.close()
    lines = (re.sub(r"\s+", " ", line).strip() for line in "".join(collector.parts).split("\0"))
    return "\n".join(line for line in lines if line)


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in BLOCKS:
            self.parts.append("\0")

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, [])

    def handle_data(self, data: str) -> None:
        self.parts.append(data)
