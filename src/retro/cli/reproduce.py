"""retro reproduce"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from retro.cli.console import CONSOLE, RichNarrator, parse, print_table

STYLES = {"good": "green", "bad": "magenta", "unsure": "yellow"}
"""How the terminal shows the kinds of verdicts."""


@dataclass(frozen=True)
class Options:
    """The paper's tables and figures on data at hand, and its claims as a checklist.

    Run again, it reuses what is finished.
    """

    names: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    """Experiments, or all; none lists them."""
    scale: str = "tiny"
    """tiny: minutes to an hour on two cores; small: hours; paper: the paper's own sizes, for a
    cluster; smollm2: a pretrained base, for table-scoreboard."""
    out: Path = Path("reproduce")
    """The workspace, which may be that of retro demo --from-scratch: its runs are reused."""
    documents: int = 0
    """Documents that table-scoreboard scores; 0: as many as the scale says. More can follow later."""
    sources: tuple[str, ...] = ()
    """Your own data instead of the scale's: names of the catalogue, files or folders."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "reproduce")
    from retro.reproduce import scales
    from retro.reproduce.page import CLASSES, MARKS, checklist, tally
    from retro.reproduce.result import text_of
    from retro.reproduce.runner import EXPERIMENTS, finished, reproduce

    if not options.names:
        print_table(
            "experiments",
            ["name", "title"],
            [[name, experiment.title] for name, experiment in EXPERIMENTS.items()],
        )
        return
    # No names mean all of them.
    names = () if options.names == ("all",) else options.names
    scale = scales.get(options.scale)
    if options.documents:
        scale = replace(scale, compared_documents=options.documents)
    results = reproduce(names, scale, options.out, RichNarrator(), options.sources)
    for result in results:
        CONSOLE.print(
            f"\n[bold]{result.title}[/]   in the paper: {result.paper}", soft_wrap=True, markup=True
        )
        for table in result.tables:
            print_table(table.title, table.headings, [[text_of(cell) for cell in row] for row in table.rows])
    # All results of the folder, not only those of this command.
    tested = finished(options.out)
    CONSOLE.print(f"\n[bold]{tally(tested)}[/]", soft_wrap=True, markup=True)
    for statement, claim, _ in checklist(tested):
        if claim is not None:
            style, mark = STYLES[CLASSES[claim.verdict]], MARKS[claim.verdict]
            verdict = f"[{style}]{mark} {claim.verdict.value}[/]"
            CONSOLE.print(f"{verdict}: {statement}", soft_wrap=True, markup=True)
            spread = f"; {claim.spread}" if claim.spread else ""
            CONSOLE.print(f"    {claim.found}{spread}", soft_wrap=True, highlight=False)
    CONSOLE.print(f"{options.out / 'reproduce' / 'report.html'}", soft_wrap=True)
