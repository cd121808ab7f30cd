"""The datastore over HTTP: search, list, read; add and delete, if that is switched on."""

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse, Response

from retro.config.checks import require_utf8
from retro.corpus.documents import Document
from retro.errors import ArtifactError, DataError, RetroError
from retro.retrieval.datastore.listing import Listed, Passage
from retro.serving import schema
from retro.serving.citations import Citer
from retro.serving.memory import UNREADABLE, licence_of
from retro.serving.page_files import INDEX
from retro.serving.problems import ProblemError, problem_of
from retro.serving.routes_text import ERRORS
from retro.serving.server import Server

MOST_ROWS = 200
MOST_AROUND = 1 << 14
"""Tokens of a document that are shown at once."""
MOST_FOUND = 50
SEARCHED = 4096
"""Characters of a text to search for."""
Found = TypeVar("Found")

Limit = Annotated[int, Query(ge=1, le=MOST_ROWS)]
Name = Annotated[str, Path(max_length=1024)]
Text = Annotated[str, Query(max_length=256)]
Searched = Annotated[str, Query(min_length=1, max_length=SEARCHED)]
Names = Annotated[list[str], Query(max_length=64)]


def router(server: Server) -> APIRouter:
    routes = APIRouter(responses=ERRORS, tags=["datastore"])

    @routes.get("/sources", response_model=schema.Documents)
    @routes.get("/sources.json", response_model=schema.Documents, include_in_schema=False)
    async def documents(
        request: Request,
        limit: Limit = 50,
        after: Annotated[str, Query(max_length=20)] = "",
        source: Text = "",
        q: Text = "",
    ) -> schema.Documents:
        """Documents in the order in which they were added, page by page; `q` is a part of title or id."""
        citer = server.citer(str(request.base_url))
        return await _asked(lambda: list_documents(server, citer, limit, after, source, q))

    @routes.get("/search", response_model=schema.Found)
    @routes.get("/search.json", response_model=schema.Found, include_in_schema=False)
    async def search(
        request: Request,
        q: Searched,
        k: Annotated[int, Query(ge=1, le=MOST_FOUND)] = 5,
        source: Names = [],  # noqa: B006 — FastAPI makes a new one for each request
        exclude: Names = [],  # noqa: B006
    ) -> schema.Found:
        """The nearest chunks of a text."""
        citer = server.citer(str(request.base_url))
        return await _asked(lambda: search_text(server, citer, q, k, source, exclude))

    @routes.get("/sources/{document:path}", response_model=schema.DocumentText)
    async def read(
        request: Request,
        document: Name,
        at: Annotated[int | None, Query(ge=0, le=1 << 40)] = None,
        around: Annotated[int, Query(ge=1, le=MOST_AROUND)] = 2048,
    ) -> Response:
        """A document by content hash or id, around a token; a browser gets the page that shows it."""
        if not document.endswith(".json") and "text/html" in request.headers.get("accept", ""):
            return FileResponse(INDEX, media_type="text/html")
        citer = server.citer(str(request.base_url))
        found = await _asked(lambda: read_around(server, citer, document, at, around))
        return Response(found.model_dump_json(), media_type="application/json")

    @routes.post("/documents", response_model=schema.Added, status_code=201)
    async def add(request: Request, body: schema.NewDocument) -> schema.Added:
        """Add a document; the next request can retrieve it."""
        citer = server.citer(str(request.base_url))
        # One after the other, so that those who wait hold no thread.
        async with server.writing:
            return await _asked(lambda: add_document(server, citer, body))

    @routes.delete("/documents/{document:path}", response_model=schema.Deleted)
    async def delete(document: Name) -> schema.Deleted:
        """Delete all documents with this content hash or id: nothing retrieves or shows them any more."""
        async with server.writing:
            return await _asked(lambda: delete_document(server, document))

    return routes


async def _asked(ask: Callable[[], Found]) -> Found:
    """Ask the datastore, beside the event loop."""
    try:
        return await asyncio.to_thread(ask)
    except (RetroError, *UNREADABLE) as error:
        raise problem_of(error) from error


def list_documents(
    server: Server, citer: Citer, limit: int, after: str, source: str, text: str
) -> schema.Documents:
    if after and not (after.isascii() and after.isdigit()):
        raise ProblemError(400, f"after is {after!r}; expected what the page before has given", "after")
    _expect_utf8(source=source, q=text)
    number = min(int(after), (1 << 63) - 1) if after else -1
    listing = server.memory.documents(limit, number, source, text)
    more = listing.rows and len(listing.rows) == limit
    return schema.Documents(
        version=listing.version,
        total=listing.total,
        data=[_row(row, citer) for row in listing.rows],
        next=str(listing.rows[-1].number) if more else None,
    )


def search_text(
    server: Server, citer: Citer, text: str, k: int, sources: list[str], exclude: list[str]
) -> schema.Found:
    memory = server.memory
    _expect_utf8(q=text, source="".join(sources), exclude="".join(exclude))
    unknown = [name for name in sources if not memory.knows_source(name)]
    if unknown:
        raise ProblemError(400, f"no document has the source {unknown[0]!r}", "source")
    exclude = [name for name in exclude if memory.knows(name)]
    found = memory.search([text], k, sources, exclude)[0]
    results = [citer.neighbour(rank, neighbour) for rank, neighbour in enumerate(found)]
    return schema.Found(query=text, version=memory.version, results=results)


def read_around(
    server: Server, citer: Citer, document: str, at: int | None, around: int
) -> schema.DocumentText:
    """The part of a document around a token, the chunk there marked."""
    memory = server.memory
    _expect_utf8(document=document)
    m = memory.chunk_len
    marked = 0 if at is None else at // m * m
    # Half before the place and half after, from the beginning of a chunk.
    start = max(0, marked - around // 2)
    try:
        passage = memory.read(document, start, around)
    except DataError:
        # A document's own id may end like a file's; the twin of a page is asked for by the ending.
        if not document.endswith(".json"):
            raise ProblemError(404, f"there is no document {document!r}", "document") from None
        return read_around(server, citer, document.removesuffix(".json"), at, around)
    return _document(passage, server, citer, None if at is None else marked, around)


def _document(
    passage: Passage, server: Server, citer: Citer, marked: int | None, around: int
) -> schema.DocumentText:
    row, m = passage.row, server.memory.chunk_len
    pieces = server.served.tokenizer.pieces(passage.tokens)

    def offset(token: int) -> int:
        return sum(map(len, pieces[: max(0, token - passage.start)]))

    start = end = 0
    if marked is not None and marked < row.num_tokens:
        start, end = offset(marked), offset(marked + m)
    previous = following = None
    if passage.start > 0:
        previous = f"{citer.url(row.content_hash, max(0, passage.start - around // 2))}&around={around}"
    if passage.end < row.num_tokens:
        following = f"{citer.url(row.content_hash, passage.end + around // 2)}&around={around}"
    return schema.DocumentText(
        **_row(row, citer).model_dump(),
        version=passage.version,
        start=passage.start,
        end=passage.end,
        text="".join(pieces),
        marked_start=start,
        marked_end=end,
        previous=previous,
        following=following,
    )


def add_document(server: Server, citer: Citer, body: schema.NewDocument) -> schema.Added:
    _expect_writes(server)
    _expect_utf8(text=body.text, title=body.title, id=body.id, source=body.source)
    size, most = len(body.text.encode()), server.config.max_document
    if size > most:
        raise ProblemError(413, f"the document has {size:,} bytes; expected at most {most:,}", "text")
    if not body.text.strip():
        raise ProblemError(400, "the document is blank; expected text", "text")
    document = Document(body.id, body.text, body.source, body.title)
    name = document.content_hash
    document = Document(body.id or name, body.text, body.source, body.title or body.id)
    try:
        version = server.memory.add(document)
    except DataError as error:
        raise problem_of(error, "id") from None
    except ArtifactError:
        raise ProblemError(
            409, "another process is changing the datastore; try again", code="busy", wait=5
        ) from None
    return schema.Added(
        document=name, id=document.id, source=document.source, url=citer.url(name), version=version
    )


def delete_document(server: Server, name: str) -> schema.Deleted:
    _expect_writes(server)
    _expect_utf8(document=name)
    try:
        count, version = server.memory.delete(name)
    except DataError:
        raise ProblemError(404, f"there is no document {name!r}", "document") from None
    except ArtifactError:
        raise ProblemError(
            409, "another process is changing the datastore; try again", code="busy", wait=5
        ) from None
    return schema.Deleted(deleted=count, version=version)


def _expect_writes(server: Server) -> None:
    if not server.config.allow_writes:
        raise ProblemError(
            403, "documents are not changed here; expected a server with --allow-writes", code="read_only"
        )


def _expect_utf8(**texts: str) -> None:
    for param, text in texts.items():
        try:
            require_utf8(param, text)
        except DataError as error:
            raise problem_of(error, param) from None


def _row(row: Listed, citer: Citer) -> schema.DocumentRow:
    return schema.DocumentRow(
        document=row.content_hash,
        id=row.id,
        source=row.source,
        title=row.title,
        language=row.language,
        tokens=row.num_tokens,
        bytes=row.num_bytes,
        chunks=row.num_chunks,
        licence=licence_of(row.source),
        url=citer.url(row.content_hash),
    )
