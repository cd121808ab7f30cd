"""retro serve"""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, parse, read_text, warn
from retro.config.serve import ServeConfig
from retro.errors import ConfigError, MissingExtraError
from retro.wording import counted

if TYPE_CHECKING:
    from retro.serving.asking import Served
    from retro.workspace import OpenRun

KEY = "RETRO_KEY"
"""Where the environment may hold the key."""
SMALL = 30_000_000
"""Parameters, embeddings left aside, below which a model is small."""


@dataclass(frozen=True)
class Options:
    """Serve a run: OpenAI's API with the sources of every answer, and a page to see them.

    It listens to this machine alone unless --host says otherwise; then a key is needed, in a file or in the
    environment's RETRO_KEY.
    """

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's own folder, or the name of a model that comes with retro."""
    name: str = "retro"
    """The run, by its name in the workspace or by its folder."""
    datastore: Path | None = None
    """A datastore to retrieve from, or a workspace that has one, in place of the workspace's own."""
    off: bool = False
    """Without a datastore: nothing is retrieved but passages that a request gives."""
    key_file: Path | None = None
    """A file that holds the key."""
    config: Annotated[ServeConfig, tyro.conf.arg(name="")] = field(default_factory=ServeConfig)


def main(arguments: list[str]) -> None:
    started = time.monotonic()
    options = parse(Options, arguments, "serve")
    key = _key(options)
    options.config.expect_key(key)
    if options.off and options.datastore is not None:
        raise ConfigError("--off retrieves nothing; expected no --datastore")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise MissingExtraError("fastapi", "serve") from None
    from retro.serving.running import address, listen, serve
    from retro.serving.server import Server
    from retro.workspace import open_run

    listener = listen(options.config)
    opened = open_run(options.place, options.name, options.datastore)
    served = make_served(opened, options)
    where = address(listener)
    CONSOLE.print(f"{_what(served)}; ready in {time.monotonic() - started:.1f} s", soft_wrap=True)
    CONSOLE.print(f"page  {where}/\napi   {where}/v1", soft_wrap=True)
    if options.config.allow_writes:
        warn("documents can be added and deleted by whoever has the key")
    serve(Server(served, options.config), listener, key)


def make_served(opened: "OpenRun", options: Options) -> "Served":
    """The model, its datastore and its chat template, loaded."""
    import torch

    from retro.generation.sampler import Sampler
    from retro.serving.asking import Served
    from retro.serving.chat import ChatTemplate
    from retro.serving.memory import Memory

    if options.config.threads or "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(options.config.threads or _threads(opened.model.num_parameters()))
    memory = None
    if opened.model.facts.retrieves and not options.off:
        datastore = opened.datastore()
        # Now, so that the first request does not wait for it.
        datastore.embedder.embed(["ready"])
        memory = Memory(datastore, options.config.num_neighbours)
    sampler = Sampler(opened.model, memory, opened.tokenizer, options.config.window)
    return Served(
        name=opened.path.name,
        sampler=sampler,
        memory=memory,
        template=ChatTemplate.of(opened.tokenizer, opened.base_folder()),
        created=int(opened.path.stat().st_mtime),
    )


def _threads(num_parameters: int) -> int:
    """Threads to compute with.

    A token of a small model takes about as long as handing it out. Threads on all cores would wait for each
    other whenever one of them is talking: half the speed (docs/results.md).
    """
    cores = os.cpu_count() or 1
    return max(1, cores - 1) if num_parameters < SMALL else cores


def _key(options: Options) -> str:
    if options.key_file is None:
        return os.environ.get(KEY, "").strip()
    return read_text(options.key_file).strip()


def _what(served: "Served") -> str:
    if served.memory is None:
        return f"run {served.name}, without a datastore"
    _, sources = served.memory.sources()
    return f"run {served.name}, {counted(sum(source.documents for source in sources), 'document')}"
