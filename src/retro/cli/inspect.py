"""retro inspect"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from retro.cli.console import CONSOLE, parse
from retro.errors import ConfigError
from retro.stages.files import atomic_write, write_json

if TYPE_CHECKING:
    from retro.workspace import Workspace


@dataclass(frozen=True)
class Options:
    """Look closely at one document of an evaluated split: what retrieval saved on every token, beside the neighbours."""

    work: Annotated[Path, tyro.conf.Positional]
    """The workspace."""
    name: Annotated[str, tyro.conf.Positional]
    """The run."""
    document: str = ""
    """The document's id, or SOURCE/ID; that with the largest gain if none is given."""
    out: Path = Path("closely.html")
    """The page; its numbers are written beside it, in a file that ends in .json."""
    split: str = "test"
    neighbours: int = 2
    """Neighbours of each chunk; the run must have been evaluated with that many."""
    list: bool = False
    """List the documents with their gains instead."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "inspect")
    if options.out.suffix == ".json":
        raise ConfigError(
            f"--out is {options.out}; expected the name of a page, such as closely.html, beside which the JSON is written"
        )
    from retro.scoring.evaluate import version_note
    from retro.workspace import Workspace

    work = Workspace(options.work)
    if options.list:
        _list(work, options)
    else:
        _write(work, options)
    note = version_note(work.evaluation(options.name, options.split).artifact, work.datastore())
    if note:
        CONSOLE.print(note, soft_wrap=True, markup=False, highlight=False)


def _list(work: "Workspace", options: Options) -> None:
    """One line a document, whole and without a frame, so that an id can be copied and the list be searched."""
    CONSOLE.print(f" saved    off → on, k = {options.neighbours}        bytes  SOURCE/ID  title")
    for row in work.document_gains(options.name, options.split, options.neighbours):
        size = max(1, row.num_bytes)
        numbers = f"{100 * row.gain:5.1f} %  {row.off / size:.3f} → {row.on / size:.3f}  {row.num_bytes:>12,}"
        CONSOLE.print(
            f"{numbers}  {row.source}/{row.id}  {row.title}", soft_wrap=True, markup=False, highlight=False
        )


def _write(work: "Workspace", options: Options) -> None:
    from retro.pages.inspection import inspection_page, inspection_record

    document = work.inspect_document(options.name, options.split, options.neighbours, options.document)
    origin = {"run": options.name, "split": options.split}
    with atomic_write(options.out) as file:
        file.write(inspection_page(document, f"run {options.name} on {options.split}").encode())
    write_json(options.out.with_suffix(".json"), {**origin, **inspection_record(document)})
    CONSOLE.print(f"page  {options.out.resolve()}", soft_wrap=True)
    CONSOLE.print(f"json  {options.out.with_suffix('.json').resolve()}", soft_wrap=True)
