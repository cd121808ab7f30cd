"""The costs as a page with curves over the number of tokens, and as JSON."""

from dataclasses import asdict
from typing import Any

from retro.config.as_json import to_dict
from retro.config.machine import MachineConfig
from retro.pages.plots import Line, line_plot
from retro.pages.shell import Made, facts_list, figure, numbers_table, page
from retro.planning.coefficients import Coefficients
from retro.planning.cost import (
    ASSUMPTIONS,
    PAPER_DISK,
    PAPER_SECONDS,
    PAPER_TOKENS,
    Costs,
)

COLOURS = ("baseline", "off", "on", "fit")


def in_bytes(size: float) -> str:
    """`1.2 TB`, `30 GB` or `4.0 MB`."""
    for unit, scale in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def in_hours(hours: float) -> str:
    """Years, days, hours, minutes or seconds, whichever can be read."""
    for unit, scale in (("years", 8766.0), ("days", 24.0), ("hours", 1.0), ("minutes", 1 / 60)):
        if hours >= 1.5 * scale:
            return f"{hours / scale:,.1f} {unit}"
    return f"{hours * 3600:,.2f} s"


def stage_rows(costs: Costs, machine: MachineConfig, days: float) -> list[list[str]]:
    """A row for each stage, as the terminal and the page show them."""
    return [
        [
            stage.name,
            in_bytes(stage.disk) if stage.disk else "",
            in_bytes(stage.memory) if stage.memory else "",
            in_hours(stage.seconds / 3600),
            in_hours(stage.hours(machine)),
            f"{stage.machines(machine, days):,}",
        ]
        for stage in costs.stages
    ]


HEADINGS = ["stage", "disk", "memory", "one core here", "one machine", "machines"]


def beside_paper(costs: Costs) -> str:
    """Our datastore and its search beside what the paper says of 1.75 trillion tokens."""
    in_proportion = in_bytes(PAPER_DISK * costs.num_tokens / PAPER_TOKENS)
    return (
        f"tokens, keys and index: {in_bytes(costs.disk)}; the paper's, 93 TB for 1.75 T tokens: "
        f"{in_proportion}; a query: {costs.search * 1e3:,.1f} ms of one core, its key included; "
        f"the paper's: {PAPER_SECONDS * 1e3:.0f} ms"
    )


def cost_record(
    known: Coefficients, costs: Costs, curves: list[Costs], machine: MachineConfig, days: float
) -> dict[str, Any]:
    """All of it as plain JSON."""
    return {
        "tokens": costs.num_tokens,
        "chunks": costs.num_chunks,
        "index": costs.index,
        "days": days,
        "machine": to_dict(machine),
        "stages": [
            {
                **asdict(stage),
                "machine_hours": stage.hours(machine),
                "machines": stage.machines(machine, days),
            }
            for stage in costs.stages
        ],
        "datastore_bytes": costs.disk,
        "query_seconds": costs.search,
        "paper": {"tokens": PAPER_TOKENS, "datastore_bytes": PAPER_DISK, "query_seconds": PAPER_SECONDS},
        "coefficients": to_dict(known),
        "assumptions": list(ASSUMPTIONS),
        "curves": [
            {"tokens": entry.num_tokens, **{stage.name: stage.seconds for stage in entry.stages}}
            for entry in curves
        ],
    }


def cost_page(
    known: Coefficients, costs: Costs, curves: list[Costs], machine: MachineConfig, days: float, made: Made
) -> str:
    """The table, the curves, the assumptions and what was measured."""
    tokens = [entry.num_tokens for entry in curves]
    drawn = [
        Line(name, tokens, [entry.stage(name).hours(machine) for entry in curves], colour)
        for name, colour in zip(("ingest", "keys", "index", "neighbours"), COLOURS, strict=True)
    ]
    hours = line_plot(drawn, "tokens", "hours of one machine", log_x=True)
    disk = [entry.disk / 1e12 for entry in curves]
    paper = [PAPER_DISK / 1e12 * entry.num_tokens / PAPER_TOKENS for entry in curves]
    sizes = line_plot(
        [Line("ours", tokens, disk, "on"), Line("the paper's, in proportion", tokens, paper, "other")],
        "tokens",
        "TB of tokens, keys and index",
        log_x=True,
    )
    assumed = "".join(f"<li>{line}</li>" for line in ASSUMPTIONS)
    table = numbers_table(HEADINGS, stage_rows(costs, machine, days), "nothing is held")
    facts = to_dict(known).items()
    measured = facts_list(
        [(name, f"{value:g}" if type(value) is float else str(value)) for name, value in facts]
    )
    body = "\n".join(
        [
            f"<p>{beside_paper(costs)}.</p>",
            f"<h2>Stages</h2><p>Machines finish each stage in {days:g} days.</p>{table}",
            figure(hours, "Hours of one such machine, by the size of the text."),
            figure(sizes, "The datastore, by the size of the text."),
            f"<h2>Taken for granted</h2><ul>{assumed}</ul>",
            f"<h2>Measured here</h2>{measured}",
        ]
    )
    return page("What it would take", body, made=made)
