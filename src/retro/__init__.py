"""RETRO: language models that retrieve from a datastore of text, after Borgeaud et al. (2022).

The names below are the stable surface; they load when first used, so that `import retro` is quick.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PLACES = {
    "Retro": "retro.model.retro",
    "load": "retro.run",
    "Datastore": "retro.retrieval.datastore",
    "Sampler": "retro.generation.sampler",
}
__all__ = ["Datastore", "Retro", "Sampler", "load", "recipes"]


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return importlib.import_module("retro.recipes")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'retro' has no attribute {name!r}")
