"""Our models as transformers knows models: `AutoModelForCausalLM`, `generate` and `pipeline`.

Importing this package registers them. `import retro` does so, too, as soon as transformers' own table of
models is imported (`retro/auto_classes.py`).
"""

from retro.hugging_face.cache import RetroCache
from retro.hugging_face.model import RetroFittedForCausalLM, RetroForCausalLM, register

__all__ = ["RetroCache", "RetroFittedForCausalLM", "RetroForCausalLM"]

register()
