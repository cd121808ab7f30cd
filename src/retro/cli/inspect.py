"""retro inspect"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, file_for, parse, warn
from retro.cli.evaluate import print_version
from retro.cli.pages import made, source_files
from retro.corpus.readers.records import FieldMap
from retro.errors import ConfigError
from retro.stages.files import atomic_write, write_json

if TYPE_CHECKING:
    from retro.jobs.scoring import Evaluated
    from retro.workspace import OpenRun


@dataclass(frozen=True)
class Options:
    """Show a document of a finished evaluation: what retrieval saved on each token, beside the neighbours."""

    place: Annotated[Path, tyro.conf.Positional]
    """The workspace, a run's folder, or the name of a model that comes with retro."""
    name: Annotated[str, tyro.conf.Positional] = ""
    """The run: its name in the workspace, retro if none is given, or its folder."""
    document: str = ""
    """The document's id, or SOURCE/ID; that with the largest gain if none is given."""
    out: Path = Path("inspection.html")
    """The page; its numbers are written beside it, in a file that ends in .json."""
    split: str = "test"
    """The evaluated split, unless --on is given."""
    on: str = ""
    """The source that the run was evaluated on."""
    fields: FieldMap = field(default_factory=FieldMap)
    """Which fields of a record hold what, with --on."""
    num_neighbours: int = 2
    """Neighbours of each chunk. The run must have been evaluated with this number."""
    datastore: Path | None = None
    """The datastore that the run was evaluated with, if not the workspace's own."""
    evaluations: Path | None = None
    """Where `retro evaluate --out` wrote; the workspace, or `evaluations` for a run or a datastore from
    elsewhere."""
    list: bool = False
    """List the documents with their gains instead."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "inspect")
    if options.out.suffix == ".json":
        raise ConfigError(
            f"--out is {options.out}; expected the name of a page, such as inspection.html, "
            "beside which the JSON is written"
        )
    if options.num_neighbours < 1:
        raise ConfigError(
            f"num_neighbours is {options.num_neighbours}; expected at least 1, a number that was evaluated"
        )
    from retro.jobs.scoring import open_evaluation
    from retro.workspace import open_run

    opened = open_run(options.place, options.name or "retro", options.datastore, options.evaluations)
    found = open_evaluation(opened, options.split, options.on, options.fields)
    warn(*opened.notes())
    if options.list:
        _list(found, options)
    else:
        _write(opened, found, options, arguments)
    print_version(opened, found.evaluation.artifact)


def _list(found: "Evaluated", options: Options) -> None:
    """One unbroken line per document, without a frame, so that ids can be copied and searched for."""
    from retro.jobs.scoring import document_gains

    CONSOLE.print(f" saved    off → on, k = {options.num_neighbours}        bytes  SOURCE/ID  title")
    for row in document_gains(found, options.num_neighbours):
        # An empty document has no bytes to divide by.
        size = max(1, row.num_bytes)
        numbers = f"{100 * row.gain:5.1f} %  {row.off / size:.3f} → {row.on / size:.3f}  {row.num_bytes:>12,}"
        CONSOLE.print(
            f"{numbers}  {row.source}/{row.id}  {row.title}", soft_wrap=True, markup=False, highlight=False
        )


def _write(opened: "OpenRun", found: "Evaluated", options: Options, arguments: Sequence[str]) -> None:
    from retro.jobs.scoring import inspect
    from retro.pages.inspection import inspection_page, inspection_record

    page = file_for(options.out, "--out")  # checked before the document is scored
    documents = options.on or options.split
    document = inspect(opened, found, options.num_neighbours, options.document)
    made_by = made("inspect", arguments, opened)
    note, files = f"run {opened.name} on {documents}", source_files(opened, options.on)
    with atomic_write(page) as file:
        file.write(inspection_page(document, note, made_by, files).encode())
    origin = {"run": opened.name, "split": documents, "made": made_by.record()}
    write_json(page.with_suffix(".json"), {**origin, **inspection_record(document)})
    CONSOLE.print(f"page  {page.resolve()}", soft_wrap=True)
    CONSOLE.print(f"json  {page.with_suffix('.json').resolve()}", soft_wrap=True)
