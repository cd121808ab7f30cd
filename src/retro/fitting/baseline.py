"""RETROfit for our own baselines: retrieval is added, and the trained weights
stay as they are."""

from dataclasses import replace

from retro.config import RetrievalConfig
from retro.errors import ConfigError
from retro.model.protocol import TrainableModel
from retro.model.retro import Retro
from retro.model.start import start_retrieval


def retrofit(baseline: TrainableModel, retrieval: RetrievalConfig) -> Retro:
    """The baseline with new cross-attention and encoder, the only weights that a run will train.

    Without neighbours its logits are the baseline's, bit for bit, and stay so. Nothing below
    the first cross-attention is trained, so no gradient is computed there either.
    """
    if not isinstance(baseline, Retro) or baseline.config.uses_retrieval:
        raise ConfigError(
            "the model to fit has cross-attention already; expected a baseline; "
            "run: retro train WORK --baseline"
        )
    model = Retro(replace(baseline.config, retrieval=retrieval))
    # Not strict: the baseline has none of the retrieval weights.
    model.load_state_dict(baseline.state_dict(), strict=False)
    start_retrieval(model)  # again, now that the embedding is the trained one
    model.freeze_all_but_retrieval()
    return model
