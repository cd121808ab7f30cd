"""Packages brought beside the project for comparison only: retro-pytorch 0.3.9 and sentence-transformers."""

import importlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from retro.catalogue.fetching import cache_dir

REQUIREMENT = "retro-pytorch==0.3.9"
SENTENCES = "sentence-transformers==6.2.0"


def peer_model(**settings: Any) -> Any:
    """A `retro_pytorch.RETRO`.

    Its index builder, unused here, no longer imports beside current numpy and is stubbed.
    """
    stub = types.ModuleType("autofaiss")
    stub.build_index = None  # type: ignore[attr-defined]
    sys.modules.setdefault("autofaiss", stub)
    return bring(REQUIREMENT, "retro_pytorch.retro_pytorch").RETRO(**settings)


def bring(requirement: str, module: str) -> Any:
    """A module of a package that is installed, alone, into the cache."""
    folder = cache_dir() / "peers" / requirement.replace("==", "-")
    if not folder.exists():
        _install(requirement, folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(module)


def _install(requirement: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*command, "--target", str(folder), requirement], check=True)
