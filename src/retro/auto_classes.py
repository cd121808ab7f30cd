"""Registers our models with transformers without importing it.

`import retro` must stay quick, and most commands never need transformers. So whoever imports its table of
models, before or after us, causes the registration.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

TABLE = "transformers.models.auto.modeling_auto"
"""The module that holds `AutoModelForCausalLM`."""
OURS = "retro.hugging_face"


def register_with_transformers() -> None:
    """Now, if transformers' table of models is there, and otherwise right after it is imported."""
    if TABLE in sys.modules:
        importlib.import_module(OURS)
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


class _Waiting(MetaPathFinder):
    """Waits for the table to be imported, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != TABLE:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _ThenRegister(spec.loader)
        return spec


class _ThenRegister(Loader):
    """Loads the table as ever, and puts our models into it."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # From here on nothing shows that somebody stood between.
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        importlib.import_module(OURS)
