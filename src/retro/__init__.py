"""RETRO: language models that retrieve from a datastore of text, after Borgeaud et al. (2022).

The names below are the stable surface; they load when first used, so that `import retro` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from retro.auto_classes import register_with_transformers

if TYPE_CHECKING:
    from retro import recipes as recipes
    from retro.config import CorpusConfig as CorpusConfig
    from retro.config import DatastoreConfig as DatastoreConfig
    from retro.config import EncoderConfig as EncoderConfig
    from retro.config import EvaluationConfig as EvaluationConfig
    from retro.config import FineTuningConfig as FineTuningConfig
    from retro.config import FitConfig as FitConfig
    from retro.config import KnnConfig as KnnConfig
    from retro.config import ModelConfig as ModelConfig
    from retro.config import RetrievalConfig as RetrievalConfig
    from retro.config import RunConfig as RunConfig
    from retro.config import ShownConfig as ShownConfig
    from retro.config import TrainingConfig as TrainingConfig
    from retro.corpus.tokenizers.tokenizer import Tokenizer as Tokenizer
    from retro.errors import RetroError as RetroError
    from retro.fitting.fitted import FittedModel as FittedModel
    from retro.fitting.passport import fit as fit
    from retro.generation.request import Choice as Choice
    from retro.generation.request import Prompt as Prompt
    from retro.generation.request import Request as Request
    from retro.generation.request import Retrieval as Retrieval
    from retro.generation.sampler import Sampler as Sampler
    from retro.generation.sequence import Sample as Sample
    from retro.hugging_face import RetroForCausalLM as RetroForCausalLM
    from retro.mirrors import mirrored as mirrored
    from retro.model.protocol import LanguageModel as LanguageModel
    from retro.model.retro import Retro as Retro
    from retro.retrieval.datastore import Datastore as Datastore
    from retro.retrieval.datastore import Neighbour as Neighbour
    from retro.retrieval.retriever import Passage as Passage
    from retro.retrieval.retriever import Retriever as Retriever
    from retro.run import Run as Run
    from retro.run import load as load
    from retro.scoring.evaluate import Evaluation as Evaluation
    from retro.showing.own_text import open_text as open_text
    from retro.workspace import OpenRun as OpenRun
    from retro.workspace import Workspace as Workspace
    from retro.workspace import open_run as open_run

__version__ = "0.1.0"

_CONFIG = "retro.config"
_PLACES = {
    # Models and runs
    "Retro": "retro.model.retro",
    "LanguageModel": "retro.model.protocol",
    "FittedModel": "retro.fitting.fitted",
    "RetroForCausalLM": "retro.hugging_face",
    "Run": "retro.run",
    "load": "retro.run",
    "fit": "retro.fitting.passport",
    "OpenRun": "retro.workspace",
    "open_run": "retro.workspace",
    "open_text": "retro.showing.own_text",
    "Workspace": "retro.workspace",
    "mirrored": "retro.mirrors",
    # Retrieval
    "Datastore": "retro.retrieval.datastore",
    "Neighbour": "retro.retrieval.datastore",
    "Retriever": "retro.retrieval.retriever",
    "Passage": "retro.retrieval.retriever",
    "Tokenizer": "retro.corpus.tokenizers.tokenizer",
    # Generation
    "Sampler": "retro.generation.sampler",
    "Sample": "retro.generation.sequence",
    "Choice": "retro.generation.request",
    "Retrieval": "retro.generation.request",
    "Request": "retro.generation.request",
    "Prompt": "retro.generation.request",
    # Scoring
    "Evaluation": "retro.scoring.evaluate",
    # Configs
    "RunConfig": _CONFIG,
    "ModelConfig": _CONFIG,
    "RetrievalConfig": _CONFIG,
    "EncoderConfig": _CONFIG,
    "CorpusConfig": _CONFIG,
    "DatastoreConfig": _CONFIG,
    "TrainingConfig": _CONFIG,
    "EvaluationConfig": _CONFIG,
    "KnnConfig": _CONFIG,
    "FineTuningConfig": _CONFIG,
    "ShownConfig": _CONFIG,
    "FitConfig": _CONFIG,
    "RetroError": "retro.errors",
}
"""Where each name is loaded from; the imports above tell type checkers the same."""

__all__ = [*_PLACES, "recipes"]


register_with_transformers()


def __getattr__(name: str) -> Any:
    if name == "recipes":
        return importlib.import_module("retro.recipes")
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'retro' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
