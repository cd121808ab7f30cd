"""Metrics of a run as JSON lines, one object a report, and for TensorBoard if asked for."""

import json
from pathlib import Path
from typing import Any

from retro.errors import ArtifactError, MissingExtraError
from retro.stages.files import atomic_write

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"

Value = int | float | str | dict[str, float]


class MetricsLog:
    """Appends reports to a file.

    When a run resumes, reports after its checkpoint are dropped, as they will be made again.
    """

    def __init__(self, folder: Path, first_step: int, tensorboard: bool = False) -> None:
        self.path = folder / METRICS
        known = read_metrics(self.path) if self.path.exists() else []
        kept = [row for row in known if row["step"] <= first_step]
        with atomic_write(self.path) as file:
            file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept).encode())
        self._writer = _summary_writer(folder / TENSORBOARD, first_step) if tensorboard else None

    def add(self, step: int, **values: Value) -> None:
        # Opened for each report, so that it is on disk when a run is killed.
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}, ensure_ascii=False) + "\n")
        for name, value in values.items() if self._writer else ():
            _show(self._writer, step, name, value)

    def last(self, *names: str) -> dict[str, Any]:
        """The values of these metrics in the last report that has any of them."""
        for row in reversed(read_metrics(self.path)):
            found = {name: row[name] for name in names if name in row}
            if found:
                return found
        return {}

    def close(self) -> None:
        if self._writer:
            self._writer.close()


def _show(writer: Any, step: int, name: str, value: Value) -> None:
    if isinstance(value, str):
        writer.add_text(name, value, step)
    else:
        scalars = {name: value}
        if isinstance(value, dict):
            scalars = {f"{name}/{key}": item for key, item in value.items()}
        for key, item in scalars.items():
            writer.add_scalar(key, item, step)


def _summary_writer(folder: Path, first_step: int) -> Any:
    """A writer of event files: tensorboardX is small; viewing them takes TensorBoard itself."""
    try:
        import tensorboardX
    except ImportError:
        raise MissingExtraError("tensorboardX", "tensorboard") from None
    # Steps after the checkpoint are purged here, too.
    return tensorboardX.SummaryWriter(str(folder), purge_step=first_step + 1)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The reports of a run, without a last line that was cut off by a kill."""
    # What follows the last newline is either nothing or half a report.
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
        rows = [json.loads(line) for line in lines]
    except (OSError, ValueError, RecursionError):
        rows = [None]
    if not all(isinstance(row, dict) and isinstance(row.get("step"), int) for row in rows):
        raise ArtifactError(
            f"{path} is damaged; expected one report a line, each an object with its step; "
            "remove the lines that are none"
        )
    return rows


def curve(rows: list[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    """Tokens seen and values of one metric."""
    points: list[tuple[Any, Any]] = [(row.get("tokens"), row[name]) for row in rows if name in row]
    if not all(isinstance(tokens, int) and isinstance(value, int | float) for tokens, value in points):
        raise ArtifactError(f"the reports of {name} are damaged; expected a number at a number of tokens")
    return [tokens for tokens, _ in points], [value for _, value in points]
