"""A workspace with an untrained run, made in a second or two."""

from pathlib import Path

from retro.jobs.training import train_run
from retro.workspace import Workspace
from tests.workspaces import small_run, small_workspace


def workspace_with_run(folder: Path, source: Path, encoder: str) -> Workspace:
    """Neighbours of train and valid, and a RETRO called `retro` after a few steps."""
    work, run = small_workspace(folder, source, encoder), small_run(encoder)
    train_run(work, "retro", run.model, run.training)
    return work
