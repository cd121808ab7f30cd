"""RETROfitting our own baselines: retrieval for a model that is already trained,
whose weights stay as they are."""

from dataclasses import replace

from retro.config import RetrievalConfig
from retro.errors import ConfigError
from retro.model.protocol import TrainableModel
from retro.model.retro import Retro
from retro.model.start import start_retrieval


def retrofit(baseline: TrainableModel, retrieval: RetrievalConfig) -> Retro:
    """The baseline with fresh chunked cross-attention and encoder, the only
    weights that a run will train.

    Without neighbours its logits are the baseline's, bit for bit and for ever. As nothing
    below the first cross-attention is trained, no gradient is computed there either.
    """
    if not isinstance(baseline, Retro) or baseline.config.uses_retrieval:
        raise ConfigError(
            "the model to fit has cross-attention already; expected a baseline; run: retro train --baseline"
        )
    model = Retro(replace(baseline.config, retrieval=retrieval))
    model.load_state_dict(baseline.state_dict(), strict=False)
    start_retrieval(model)  # again, now that the embedding is the trained one
    model.freeze_all_but_retrieval()
    return model
