"""Metrics of a run as JSON lines, one object for each report."""

import json
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"


class MetricsLog:
    """Appends to the file; when a run resumes, reports after its checkpoint are dropped, as they will be made again."""

    def __init__(self, path: Path, first_step: int) -> None:
        self.path = path
        kept = [row for row in read_metrics(path) if row["step"] <= first_step] if path.exists() else []
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def add(self, step: int, **values: int | float) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The reports of a run; a last line that was cut off by a kill is left out."""
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def curve(rows: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Tokens seen and values of one metric."""
    points = [(row["tokens"], row[name]) for row in rows if name in row]
    return [tokens for tokens, _ in points], [value for _, value in points]
