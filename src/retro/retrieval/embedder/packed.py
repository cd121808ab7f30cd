"""Linear layers, and BERT's, laid out for inference: weights in oneDNN's blocks, few passes over memory."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

ROWS = 1024
"""Rows of a product that weights are laid out for. A hint: other numbers are as right, if not as fast."""


class PackedLinear(nn.Module):
    """A linear layer for inference whose weight lies in the blocks that oneDNN's matrix product reads."""

    def __init__(self, layer: nn.Linear, dtype: torch.dtype = torch.float32, gelu: bool = False) -> None:
        super().__init__()
        weight = layer.weight.detach().to(dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        self.bias = None if layer.bias is None else layer.bias.detach().to(dtype)
        # What follows the product is done before it leaves the caches.
        self.after: tuple[str, list[float], str] = ("gelu", [], "none") if gelu else ("none", [], "")

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, *self.after)
        return product


def can_pack() -> bool:
    """Whether torch comes with oneDNN."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")


@torch.inference_mode()
def pack_linear_layers(model: nn.Module) -> None:
    """Exchange a model's linear layers for packed ones; where torch comes without oneDNN they stay."""
    if not can_pack():
        return
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is nn.Linear:  # a subclass may read its weight in other ways
                setattr(module, name, PackedLinear(child))


class PackedBert(nn.Module):
    """What transformers' `BertModel` computes, with one product for queries, keys and values, GELU inside the
    product before it, and, in bfloat16, weights that are rounded once."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.embeddings = model.embeddings
        self.dtype = dtype
        self.layers = nn.ModuleList(_PackedLayer(layer, dtype) for layer in model.encoder.layer)

    @staticmethod
    def can_stand_for(model: nn.Module) -> bool:
        """Whether a model is a BERT of the common kind: an encoder with GELU."""
        config = getattr(model, "config", None)
        return (
            can_pack()
            and type(model).__name__ == "BertModel"
            and getattr(config, "hidden_act", "") == "gelu"
            and not getattr(config, "is_decoder", False)
        )

    def forward(
        self, input_ids: Int[Tensor, "text piece"], is_real: Bool[Tensor, "text piece"]
    ) -> Float[Tensor, "text piece width"]:
        x = self.embeddings(input_ids).to(self.dtype)
        mask = None if bool(is_real.all()) else is_real[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return x


class _PackedLayer(nn.Module):
    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        super().__init__()
        attention = layer.attention.self
        parts = (attention.query, attention.key, attention.value)
        joined = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts))
        joined.weight.copy_(torch.cat([part.weight for part in parts]))
        joined.bias.copy_(torch.cat([part.bias for part in parts]))
        self.num_heads = attention.num_attention_heads
        self.scale = attention.scaling
        self.qkv = PackedLinear(joined, dtype)
        self.out = PackedLinear(layer.attention.output.dense, dtype)
        self.norm = layer.attention.output.LayerNorm.to(dtype)
        self.widen = PackedLinear(layer.intermediate.dense, dtype, gelu=True)
        self.narrow = PackedLinear(layer.output.dense, dtype)
        self.last_norm = layer.output.LayerNorm.to(dtype)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        read = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.scale)
        x = self.norm(self.out(read.transpose(1, 2).flatten(2)).add_(x))
        result: Tensor = self.last_norm(self.narrow(self.widen(x)).add_(x))
        return result
