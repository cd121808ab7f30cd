"""Every knob of a run: frozen, keyword-only dataclasses that check themselves. Standard library only."""

from retro.config.data import FILE_BYTES, CorpusConfig, DatastoreConfig
from retro.config.fit import FitConfig
from retro.config.model import EncoderConfig, ModelConfig, RetrievalConfig, cross_attention_places
from retro.config.run import (
    EvaluationConfig,
    FineTuningConfig,
    KnnConfig,
    QuestionsConfig,
    RunConfig,
    ShownConfig,
    TrainingConfig,
)

__all__ = [
    "FILE_BYTES",
    "CorpusConfig",
    "DatastoreConfig",
    "EncoderConfig",
    "EvaluationConfig",
    "FineTuningConfig",
    "FitConfig",
    "KnnConfig",
    "ModelConfig",
    "QuestionsConfig",
    "RetrievalConfig",
    "RunConfig",
    "ShownConfig",
    "TrainingConfig",
    "cross_attention_places",
]
