"""The copying start: an untrained model already continues a neighbour that repeats the text."""

import pytest
import torch

from retro.config import EncoderConfig, ModelConfig, RetrievalConfig
from retro.model.retro import Retro


def lift_of_copy(copying_start: bool, encoder_width: int) -> float:
    """By how many standard deviations the right next token stands out, where the neighbour holds the very
    text at another offset."""
    torch.manual_seed(0)
    encoder = EncoderConfig(d_model=encoder_width, num_layers=1, num_heads=4, head_dim=32, ffw_dim=256)
    retrieval = RetrievalConfig(
        cross_attention_layers=(2,),
        encoder=encoder,
        share_embeddings=encoder_width == 128,
        copying_start=copying_start,
    )
    config = ModelConfig(
        vocab_size=512,
        d_model=128,
        num_layers=2,
        num_heads=4,
        head_dim=32,
        ffw_dim=256,
        chunk_len=16,
        retrieval=retrieval,
    )
    model = Retro(config).eval()
    tokens = torch.randint(1, 512, (8, 32))
    neighbours = torch.randint(1, 512, (8, 2, 1, 32))
    neighbours[:, 0, 0, 5:25] = tokens[:, 12:32]
    rows = torch.arange(16, 30)
    with torch.no_grad():
        logits = model(tokens, neighbours)[:, rows]
    right = logits.gather(-1, tokens[:, rows + 1, None])[..., 0]
    return float(((right - logits.mean(-1)) / logits.std(-1)).mean())


@pytest.mark.parametrize("encoder_width", [128, 96, 64, 256])
def test_copying_start_copies(encoder_width: int) -> None:
    assert abs(lift_of_copy(copying_start=False, encoder_width=encoder_width)) < 0.3
    assert lift_of_copy(copying_start=True, encoder_width=encoder_width) > 1.0
