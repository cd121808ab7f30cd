"""Models that come with the package, by name: what was added to a base of the catalogue, which is fetched.

In the repository they lie in `models`, to which `retro/models` is a link; a wheel holds them in its place.
"""

import shutil
from pathlib import Path

FOLDER = Path(__file__).parent / "models"
RECORD = "run.json"
FILES = ("config.json", "model.safetensors", "metrics.jsonl", RECORD)
"""What is taken of a run: what opens it, and how it was learned. The base has the tokenizer."""


def names() -> list[str]:
    """The models that are there."""
    return sorted(record.parent.name for record in FOLDER.glob(f"*/{RECORD}"))


def find(name: str | Path) -> Path | None:
    """The folder of the model with this name; a file or folder of the user's own goes before it."""
    return FOLDER / str(name) if str(name) in names() and not Path(name).exists() else None


def or_named() -> str:
    """Goes on with what else might have been meant, where a run was looked for in vain."""
    return f", or the name of one that comes with retro: {', '.join(names())}" if names() else ""


def ship(run: Path, folder: Path) -> None:
    """Copy what is needed of a fitted run into the folder of a model; its card is written apart."""
    folder.mkdir(parents=True, exist_ok=True)
    # The record comes last: a folder that has one is a model.
    for name in FILES:
        shutil.copyfile(run / name, folder / name)
