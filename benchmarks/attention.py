"""Exact causal relative attention in four ways: time and peak memory, forward and backward, at lengths 512,
1024 and 2048.

    python benchmarks/attention.py

`reference` holds all logits at once; `blocked` is the model's own, which never computes what lies beyond a
block of queries; `recomputed` is the same under activation checkpointing; `fused` is the identity of
docs/decisions/0009-attention.md, one plain scaled dot-product attention over longer heads. Memory is the
peak of a fresh process less that of the same process before. Two shapes: the paper's smallest decoder (896
wide, 16 heads of 64) and the demo's (128 wide, 4 heads of 32).
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path

import torch
from timing import interleaved_medians
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import retro.model.attention as attention_module
from retro.model.attention import SelfAttention

SHAPES = {"paper-172m": (896, 16, 64), "tiny": (128, 4, 32)}
LENGTHS = (512, 1024, 2048)
DEPTH = 4
"""Layers one upon the other whose memory is measured: recomputation saves what the others keep of each."""
VARIANTS = ("reference", "blocked", "recomputed", "fused")


def fused(operator: SelfAttention, x: Tensor, is_token: Tensor) -> Tensor:
    """sin and cos of i − j split into those of i and of j: the positional logit is a rotated query times a
    fixed vector of j."""
    attention, length, half = operator.attention, x.shape[-2], operator.attention.width // 2
    normed = operator.norm(x)
    query = attention.scale(attention.split_heads(attention.query(normed)))
    key, value = attention.split_heads(attention.key(normed)), attention.split_heads(attention.value(normed))
    maps = attention.position.weight.unflatten(0, (attention.num_heads, attention.head_dim))
    sine, cosine = ((query + attention.position_bias) @ maps).split(half, dim=-1)
    exponents = torch.arange(half, dtype=x.dtype) / half
    angles = torch.arange(length, dtype=x.dtype)[:, None] * 10_000.0**-exponents
    sin, cos = angles.sin(), angles.cos()
    rotated = torch.cat(
        [query + attention.content_bias, sine * sin + cosine * cos, cosine * sin - sine * cos], dim=-1
    )
    places = torch.cat([cos, sin], dim=-1).expand(*key.shape[:-1], 2 * half)
    keys = torch.cat([key, places], dim=-1)
    padded = F.pad(value, (0, 2 * half))  # the fused kernel wants heads of one size
    output = F.scaled_dot_product_attention(rotated, keys, padded, is_causal=True, scale=1.0)[
        ..., : attention.head_dim
    ]
    return x + attention.merge_heads(output)


def variant(name: str, operator: SelfAttention) -> Callable[[Tensor, Tensor], Tensor]:
    if name == "fused":
        return partial(fused, operator)
    if name == "recomputed":
        return lambda x, is_token: checkpoint(operator, x, is_token, use_reentrant=False)
    return operator


def step_of(name: str, shape: str, length: int, depth: int = 1) -> Callable[[], Tensor]:
    torch.manual_seed(0)
    width, num_heads, head_dim = SHAPES[shape]
    calls = [variant(name, SelfAttention(width, num_heads, head_dim, causal=True)) for _ in range(depth)]
    x = torch.randn(1, length, width, requires_grad=True)
    is_token = torch.ones(1, length, dtype=torch.bool)

    def step() -> Tensor:
        attention_module.CAUSAL_BLOCK = length if name == "reference" else 128
        output = reduce(lambda state, call: call(state, is_token), calls, x)
        output.square().sum().backward()
        return output

    return step


def peak_megabytes(name: str, shape: str, length: int) -> float:
    """Of a process of its own, as the peak never falls."""
    done = subprocess.run(
        [sys.executable, __file__, name, shape, str(length)], capture_output=True, text=True, check=True
    )
    megabytes: float = json.loads(done.stdout)
    return megabytes


def measure_peak(name: str, shape: str, length: int) -> None:
    step_of(name, shape, 64)()  # what libraries load on first use
    step = step_of(name, shape, length, DEPTH)
    before = high_water()
    step()
    print(json.dumps((high_water() - before) / 1024))


def high_water() -> int:
    """The most kilobytes this process has held.

    Linux only: getrusage would tell the parent's peak, which a child inherits.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def main() -> None:
    for shape, (width, num_heads, head_dim) in SHAPES.items():
        print(
            f"{shape}: {width} wide, {num_heads} heads of {head_dim}, one sequence, "
            f"{torch.get_num_threads()} threads"
        )
        for length in LENGTHS:
            steps = {name: step_of(name, shape, length) for name in VARIANTS}
            expected = steps["reference"]()
            error = max(float((steps[name]() - expected).abs().max().detach()) for name in VARIANTS)
            seconds = interleaved_medians(steps, rounds=5, warmup=1)
            for name in VARIANTS:
                ratio, peak = seconds[name] / seconds["blocked"], peak_megabytes(name, shape, length)
                print(
                    f"  length {length} {name:<10} {1000 * seconds[name]:8.1f} ms ({ratio:.2f} of "
                    f"blocked), peak {peak:6.0f} MB"
                )
            print(f"  length {length} largest difference between any two {error:.1e}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        measure_peak(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main()
