"""retro plan"""

import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from retro.cli.console import CONSOLE, RichNarrator, file_for, parse, print_table
from retro.config.machine import MachineConfig
from retro.errors import ConfigError
from retro.stages.files import atomic_write, write_json
from retro.wording import counted

if TYPE_CHECKING:
    from retro.planning.coefficients import Coefficients

POINTS = (1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12)


@dataclass(frozen=True)
class Options:
    """What a corpus of any size would take: disk, memory, hours and machines for every stage.

    The costs of a token, a chunk and a key are measured on this machine, which takes two minutes, and kept.
    The rest is arithmetic, and says what it takes for granted.
    """

    tokens: str = "1.75T"
    """How much text: 300M, 20B, 1.75T."""
    embedder: str = "minilm"
    """What makes the keys: a name in the catalogue, or the folder or hub id of a BERT-like model."""
    like: str = ""
    """A source, as `retro ingest` takes it, of text like that which is planned; empty: Python's own library.
    How long documents are, and how much they are alike, changes what their neighbours cost."""
    machine: MachineConfig = field(default_factory=MachineConfig)
    """One of the machines that are to do it."""
    days: float = 7.0
    """In how many days each stage is to be done, for the number of machines."""
    recipe: str = "paper-7.5b"
    """The model, and how long it is trained."""
    calibrate: bool = False
    """Measure again, instead of using what was measured before."""
    json: bool = False
    """Print JSON."""
    out: Path | None = None
    """A page with the curves, and its JSON beside it."""


def main(arguments: list[str]) -> None:
    options = parse(Options, arguments, "plan")
    if not 0 < options.days < float("inf"):
        raise ConfigError(f"--days is {options.days:g}; expected a positive number")
    out = file_for(options.out, "--out") if options.out else None
    from retro import recipes
    from retro.planning.cost import curve, parse_tokens, plan_costs
    from retro.planning.cost_page import HEADINGS, beside_paper, cost_page, cost_record, stage_rows

    num_tokens = parse_tokens(options.tokens)
    run = recipes.get(options.recipe)
    known = measured(options)
    costs = plan_costs(known, num_tokens, run.model, run.training)
    curves = curve(known, sorted({*POINTS, num_tokens}), run.model, run.training)
    record = cost_record(known, costs, curves, options.machine, options.days)
    if out is not None:
        from retro.pages.shell import Made

        made = Made(shlex.join(["retro", "plan", *arguments]), f"none: {options.tokens} tokens are planned")
        with atomic_write(out) as file:
            file.write(cost_page(known, costs, curves, options.machine, options.days, made).encode())
        write_json(out.with_suffix(".json"), record)
    if options.json:
        print(json.dumps(record, indent=2))
        return
    chunks = counted(round(costs.num_chunks), "chunk")
    title = f"{options.tokens} tokens, {chunks}, index: {costs.index}; {options.recipe}"
    print_table(title, HEADINGS, stage_rows(costs, options.machine, options.days))
    say(f"machines: to be done with each stage in {options.days:g} days, {options.machine}")
    say(beside_paper(costs))
    for line in record["assumptions"]:
        say(f"assumed: {line}")
    if out is not None:
        say(f"{out} shows the curves")


def measured(options: Options) -> "Coefficients":
    """The coefficients of this machine, measured now or before."""
    from retro.corpus.readers import read
    from retro.planning.calibration import calibrate
    from retro.planning.coefficients import keep_coefficients, place_of, read_coefficients

    like = options.like
    if like and Path(like).exists():
        like = str(Path(like).resolve())  # elsewhere another folder may have the same name
    path = place_of(options.embedder, like)
    known = None if options.calibrate else read_coefficients(path)
    if known is None:
        documents = read(options.like) if options.like else None
        with RichNarrator().progress("Measuring this machine with one core") as progress:
            known = calibrate(options.embedder, progress, documents)
        keep_coefficients(known, path)
    if not options.json:
        say(f"measured with one core of {known.processor} on {known.measured}, kept in {path}")
    return known


def say(line: str) -> None:
    CONSOLE.print(line, soft_wrap=True, markup=False, highlight=False)
