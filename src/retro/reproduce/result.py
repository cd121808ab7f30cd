"""What an experiment found: tables, figures, claims, and where every number comes from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retro.reproduce.claims import Claim, Verdict
from retro.scoring.intervals import Interval
from retro.stages.files import atomic_write, write_json

Cell = str | int | float | Interval | None


@dataclass(frozen=True)
class Table:
    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Figure:
    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Findings:
    """What an experiment found."""

    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    claims: Sequence[Claim] = ()


@dataclass(frozen=True)
class Result:
    """A finished experiment."""

    name: str
    title: str
    paper: str
    """What the paper reports here."""
    tables: Sequence[Table]
    figures: Sequence[Figure]
    claims: Sequence[Claim]
    provenance: dict[str, Any]
    """The command, the resolved config, and the fingerprints of the data and models."""

    def save(self, folder: Path) -> None:
        """Write NAME.json and an SVG for each figure."""
        folder.mkdir(parents=True, exist_ok=True)
        # Figures first: once NAME.json is there, `load` finds every picture it names.
        for figure in self.figures:
            with atomic_write(folder / f"{self.name}-{figure.name}.svg") as file:
                file.write(figure.svg.encode())
        write_json(folder / f"{self.name}.json", self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "paper": self.paper,
            "tables": [
                {
                    "title": t.title,
                    "headings": list(t.headings),
                    "rows": [[_plain(cell) for cell in row] for row in t.rows],
                }
                for t in self.tables
            ],
            "figures": [{"name": f.name, "caption": f.caption} for f in self.figures],
            "claims": [
                {
                    "key": c.key,
                    "statement": c.statement,
                    "verdict": c.verdict.value,
                    "found": c.found,
                    "number": _plain(c.number),
                    "seeds": list(c.seeds),
                }
                for c in self.claims
            ],
            "provenance": self.provenance,
        }

    @staticmethod
    def load(path: Path) -> "Result":
        """Read a result back, with its pictures."""
        values = json.loads(path.read_text())
        tables = [
            Table(t["title"], t["headings"], [[_cell(cell) for cell in row] for row in t["rows"]])
            for t in values["tables"]
        ]
        figures = [
            Figure(f["name"], f["caption"], (path.parent / f"{values['name']}-{f['name']}.svg").read_text())
            for f in values["figures"]
        ]
        claims = [_claim(c) for c in values["claims"]]
        return Result(
            values["name"], values["title"], values["paper"], tables, figures, claims, values["provenance"]
        )


def _claim(values: dict[str, Any]) -> Claim:
    # Results from before models were trained with several seeds have no numbers.
    number = values.get("number")
    return Claim(
        values["key"],
        Verdict(values["verdict"]),
        values["found"],
        Interval(**number) if number else None,
        tuple(values.get("seeds", ())),
    )


def text_of(cell: Cell) -> str:
    """A cell as text for people."""
    if isinstance(cell, Interval):
        return f"{number(cell.estimate)} ({number(cell.low)} to {number(cell.high)})"
    if isinstance(cell, float):
        return number(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    return cell or ""


def number(value: float) -> str:
    """Four decimals for numbers the size of bits per byte, fewer for larger ones."""
    if abs(value) >= 100:
        return f"{value:,.1f}"
    return f"{value:.2f}" if abs(value) >= 10 else f"{value:.4f}"


def _plain(cell: Cell) -> Any:
    return (
        {"estimate": cell.estimate, "low": cell.low, "high": cell.high}
        if isinstance(cell, Interval)
        else cell
    )


def _cell(value: Any) -> Cell:
    # The only cells that JSON holds as objects are intervals.
    return Interval(**value) if isinstance(value, dict) else value
