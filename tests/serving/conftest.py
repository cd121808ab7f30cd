"""A small workspace, a model with random weights in double precision, and a server over both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from retro.model.retro import Retro
from retro.workspace import Workspace
from tests.serving.live import KEY, Live, live, served
from tests.workspaces import small_run, small_workspace


def random_model(embedder: str, dtype: torch.dtype = torch.float64) -> Retro:
    """Its neighbours matter: the output of cross-attention is not as small as at a quiet start."""
    torch.manual_seed(0)
    model = Retro(small_run(embedder).model).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.fixture(scope="session")
def small_work(tmp_path_factory: pytest.TempPathFactory, text_folder: Path, static_encoder: str) -> Workspace:
    """Nobody changes it."""
    return small_workspace(tmp_path_factory.mktemp("served"), text_folder, static_encoder, splits=())


@pytest.fixture(scope="session")
def small_model(static_encoder: str) -> Retro:
    return random_model(static_encoder)


@pytest.fixture(scope="session")
def server(small_work: Workspace, small_model: Retro) -> Iterator[Live]:
    """A server that many tests ask."""
    with live(served(small_work, small_model), copied_tokens=3) as running:
        yield running


@pytest.fixture
def own_work(tmp_path: Path, text_folder: Path, static_encoder: str) -> Workspace:
    """A workspace that a test may change."""
    return small_workspace(tmp_path / "own", text_folder, static_encoder, splits=())


@pytest.fixture
def writable(own_work: Workspace, small_model: Retro) -> Iterator[Live]:
    """A server that adds and deletes documents."""
    with live(served(own_work, small_model), KEY, allow_writes=True) as running:
        yield running
