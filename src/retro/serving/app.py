"""The application: all routes behind one door."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from starlette.exceptions import HTTPException

import retro
from retro.errors import RetroError
from retro.serving import routes_memory, routes_text, schema
from retro.serving.jobs import Told, tell_each
from retro.serving.page_files import INDEX, page_files
from retro.serving.problems import ProblemError, problem_of
from retro.serving.routes_text import ERRORS
from retro.serving.security import App, Guard
from retro.serving.server import Server

THREADS = 32
ABOUT = """\
OpenAI's API over a retrieval-enhanced language model. Every answer says, under `retro`, what it has read and,
if asked, what each source was worth: the bits saved on the text that read it.
"""


def make_app(server: Server, key: str = "") -> App:
    """The server's application; its engine runs while the application does."""
    app = FastAPI(
        title="retro",
        version=retro.__version__,
        description=ABOUT,
        # Pages that load scripts from elsewhere have no place here.
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=_lifespan(server),
        responses={},
        # Two addresses for one thing would be one too many to guard.
        redirect_slashes=False,
    )
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RetroError, _retro_error)
    # The door writes it into the log.
    app.add_exception_handler(Exception, _retro_error)
    app.include_router(routes_text.router(server))
    app.include_router(_about(server))
    app.include_router(routes_memory.router(server))
    _add_page(app)

    def count(route: str, status: int) -> None:
        server.metrics.responses.labels(route, str(status)).inc()

    return Guard(app, server.config, key, count)


def _lifespan(server: Server) -> Any:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        # What asks the datastore waits for disks; a handful of threads would soon all be waiting.
        loop.set_default_executor(ThreadPoolExecutor(THREADS, "retro-asking"))

        def deliver(told: Told) -> None:
            # One call for all: each wakes the loop. A loop that has ended has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(tell_each, told)

        server.engine.deliver = deliver
        server.engine.start()
        yield
        # What is under way has been waited for; see `running.py`.
        server.engine.stop()

    return lifespan


def _about(server: Server) -> Any:
    from fastapi import APIRouter

    routes = APIRouter(responses=ERRORS, tags=["server"])

    @routes.get("/health", response_model=schema.Health)
    async def health() -> schema.Health:
        return server.health()

    @routes.get("/info", response_model=schema.Info)
    @routes.get("/info.json", response_model=schema.Info, include_in_schema=False)
    def info() -> schema.Info:
        """What is served, and what a request may ask for."""
        return server.info()

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(server.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


def _add_page(app: FastAPI) -> None:
    files = page_files()

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        if not INDEX.exists():
            raise ProblemError(404, "this server has no page")
        return FileResponse(INDEX, media_type="text/html")

    @app.get("/page/{name:path}", include_in_schema=False)
    async def page(name: str) -> Response:
        found = files.get(name)
        if found is None:
            raise ProblemError(404, "there is no such file")
        return FileResponse(found[0], media_type=found[1])


async def _invalid(_: Request, error: Exception) -> Response:
    """What pydantic says, as OpenAI would."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0] if error.errors() else {"msg": "the request is not understood", "loc": ()}
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    # pydantic names the kind of a union that it has tried; only the fields are of use.
    param = ".".join(part for part in place if part.isidentifier() or part.isdigit()) or None
    if first.get("type") == "json_invalid":
        return _problem(ProblemError(400, "the request is no JSON", code="invalid_json"))
    where = f"{param}: " if param else ""
    return _problem(ProblemError(400, f"{where}{first['msg']}", param))


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    words = {404: "there is nothing here", 405: "this is not done here"}
    return _problem(ProblemError(error.status_code, words.get(error.status_code, str(error.detail))))


async def _retro_error(_: Request, error: Exception) -> Response:
    return _problem(problem_of(error))


def _problem(problem: ProblemError) -> Response:
    # ASCII alone: what a client has sent may hold what UTF-8 cannot.
    body = json.dumps(problem.body().model_dump())
    headers = {"Retry-After": str(problem.wait)} if problem.wait else {}
    return Response(body, problem.status, headers, media_type="application/json")
