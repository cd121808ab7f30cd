"""RETROfitting: retrieval for a baseline that is already trained, whose weights stay as they are."""

from retro.config import FitConfig
from retro.model.retro import Retro
from retro.model.start import start_retrieval


def retrofit(baseline: Retro, fit: FitConfig) -> Retro:
    """The baseline with fresh chunked cross-attention and encoder, the only weights that a run will train.

    Without neighbours its logits are the baseline's, bit for bit and for ever. As nothing below the first cross-attention is
    trained, no gradient is computed there either.
    """
    model = Retro(fit.apply(baseline.config))
    model.load_state_dict(baseline.state_dict(), strict=False)
    start_retrieval(model)  # again, now that the embedding is the trained one
    freeze_baseline(model)
    return model


def freeze_baseline(model: Retro) -> None:
    """Train nothing but what a RETRO has beyond its baseline: chunked cross-attention and encoder."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("encoder") or ".cross_attention." in name)
