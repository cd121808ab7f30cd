"""Operations that bring their own gradients, which pass over memory less often than autograd's would.

A training step on a CPU waits for memory wherever it does not multiply matrices. What is kept for the
backward pass here is what was there anyhow, and large tensors are gone through in blocks that fit into the
caches.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

BLOCK = 1 << 20
"""How many logits are gone through at once: 4 MB in float32."""


def by_hand() -> bool:
    """Whether to take these operations: where there are gradients, and no compiler that fuses by itself."""
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()


def target_log_probs(
    logits: Float[Tensor, "token vocab"], targets: Int[Tensor, " token"], pad_id: int
) -> Float[Tensor, " token"]:
    """The log-probabilities of the targets, at least in float32; 0 where the target is padding.

    As cross-entropy gives them. Neither all log-probabilities nor their gradient are ever held: the backward
    pass makes the logits' gradient of the logits, block by block.
    """
    if not by_hand():
        return -F.cross_entropy(logits, targets, ignore_index=pad_id, reduction="none")
    found: Tensor = _TargetLogProbs.apply(logits, targets, pad_id)
    return found


class _TargetLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, pad_id: int) -> Tensor:
        is_padding = targets == pad_id
        # Padding may lie behind the vocabulary; any token may stand in for it.
        places = targets.masked_fill(is_padding, 0)[:, None]
        dtype = torch.promote_types(logits.dtype, torch.float32)
        log_probs = torch.empty(len(targets), 1, dtype=dtype, device=logits.device)
        rows = _rows(logits)
        for block, at, found in zip(*(part.split(rows) for part in (logits, places, log_probs)), strict=True):
            found.copy_(block.to(dtype).log_softmax(-1).gather(-1, at))
        ctx.save_for_backward(logits, places, is_padding, log_probs)
        return log_probs[:, 0].masked_fill(is_padding, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        logits, places, is_padding, log_probs = ctx.saved_tensors
        gradient = gradient.masked_fill(is_padding, 0.0)[:, None]
        # d log p_t / d logit_j is [j = t] − p_j; for the target from what has all digits.
        at_target = (-gradient * log_probs.expm1()).to(logits.dtype)
        others = -gradient.to(logits.dtype)
        result = torch.empty_like(logits)
        parts = [part.split(_rows(logits)) for part in (logits, places, others, at_target, result)]
        for block, at, factor, target, out in zip(*parts, strict=True):
            torch.mul(block.softmax(-1), factor, out=out)
            out.scatter_(-1, at, target)
        return result, None, None


def _rows(logits: Tensor) -> int:
    return max(1, BLOCK // logits.shape[-1])


def rms_norm(
    x: Float[Tensor, "*batch width"], weight: Float[Tensor, " width"], eps: float
) -> Float[Tensor, "*batch width"]:
    """Root-mean-square normalisation with a gain, in three passes forwards and four backwards."""
    if not by_hand():
        return F.rms_norm(x, weight.shape, weight, eps)
    found: Tensor = _RMSNorm.apply(x, weight, eps)
    return found


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = x.shape[-1]
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse = length.square_().div_(width).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, inverse = ctx.saved_tensors
        width = x.shape[-1]
        product = (gradient * x).reshape(-1, width)
        # Each gain's gradient is Σ g · x / rms, over all vectors; as a product of matrices.
        by_gain = inverse.reshape(-1) @ product
        # y = w · x / rms(x): the mean of squares depends on x as well, which takes a part along x away.
        along = (product @ weight).view_as(inverse) * inverse.pow(3) / width
        return (gradient * inverse).mul_(weight).addcmul_(x, along, value=-1), by_gain, None
