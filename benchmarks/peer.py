"""retro-pytorch 0.3.9, brought beside the project for comparison only."""

import subprocess
import sys
import types
from pathlib import Path
from typing import Any

from retro.catalogue.fetching import cache_dir

REQUIREMENT = "retro-pytorch==0.3.9"


def peer_model(**settings: Any) -> Any:
    """A `retro_pytorch.RETRO`.

    Its index builder, unused here, no longer imports beside current numpy and is stubbed.
    """
    folder = cache_dir() / "peers" / REQUIREMENT.replace("==", "-")
    if not folder.exists():
        _install(folder)
    stub = types.ModuleType("autofaiss")
    stub.build_index = None  # type: ignore[attr-defined]
    sys.modules.setdefault("autofaiss", stub)
    sys.path.insert(0, str(folder))
    from retro_pytorch.retro_pytorch import RETRO

    return RETRO(**settings)


def _install(folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        REQUIREMENT,
    ]
    subprocess.run(command, check=True)
