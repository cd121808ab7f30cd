"""How much of the machine a training step uses, and what precision, recomputation and freezing change.

    python benchmarks/utilisation.py

The share is the FLOPs of the step's matrix products over its time, against the speed of one large float32
product on the same threads, measured in the same rounds. Decoder 6 × 256, encoder 1 × 256, vocabulary 8192,
cross-attention in layers 3 and 6 (the recipe massive-text-mini), 4,096 tokens a step.
"""

from collections.abc import Callable

import torch
from timing import interleaved_medians
from training_step import count_flops

from retro.config import ModelConfig, RetrievalConfig, TrainingConfig
from retro.fitting.baseline import retrofit
from retro.machine import has_bfloat16, keep_freed_memory
from retro.model.retro import Retro
from retro.recipes import get
from retro.training.objective import TokenLoss, make_optimizer, recompute_activations

TOKENS, GEMM = 4096, 1536
MODEL = get("massive-text-mini").model
CPU = torch.device("cpu")


def step_of(
    model: Retro,
    length: int = 512,
    k: int = 2,
    dtype: torch.dtype = torch.float32,
    num_tokens: int = TOKENS,
) -> Callable[[], None]:
    """A training step on random tokens; k = 0 is RETRO[OFF]."""
    torch.manual_seed(0)
    losses, optimizer, batch = (
        TokenLoss(model, dtype),
        make_optimizer(model, TrainingConfig()),
        num_tokens // length,
    )
    tokens, targets = (torch.randint(1, model.config.vocab_size, (batch, length)) for _ in range(2))
    neighbours = torch.randint(1, model.config.vocab_size, (batch, length // 64, k, 128)) if k else None

    def step() -> None:
        optimizer.zero_grad()
        (losses(tokens, targets, neighbours) / num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def recomputing(config: ModelConfig) -> Retro:
    model = Retro(config)
    recompute_activations(model)
    return model


def main() -> None:
    keep_freed_memory()
    square = torch.randn(GEMM, GEMM)
    baseline = Retro(MODEL.baseline())
    steps: dict[str, Callable[[], object]] = {"gemm": lambda: square @ square}
    steps |= {f"length {length}, k 2": step_of(Retro(MODEL), length) for length in (512, 1024, 2048)}
    steps |= {f"length 512, k {k}": step_of(Retro(MODEL), 512, k) for k in (1, 4)}
    steps |= {
        "baseline": step_of(baseline, k=0),
        "RETROfit": step_of(retrofit(baseline, MODEL.retrieval or RetrievalConfig())),
    }
    steps |= {"recomputed activations": step_of(recomputing(MODEL))}
    if has_bfloat16(CPU):
        steps["bfloat16 products"] = step_of(Retro(MODEL), dtype=torch.bfloat16)
    flops = {name: count_flops(step) for name, step in steps.items()}  # type: ignore[arg-type]
    seconds = interleaved_medians(steps, rounds=5, warmup=1)
    peak = flops["gemm"] / seconds["gemm"]
    print(f"one product of {GEMM} × {GEMM}: {peak / 1e9:.0f} GFLOP/s on {torch.get_num_threads()} threads")
    usual = seconds["length 512, k 2"]
    for name in list(steps)[1:]:
        share = flops[name] / seconds[name] / peak
        print(
            f"  {name:<24} {TOKENS / seconds[name]:7,.0f} tokens/s, {flops[name] / 1e9:4.0f} GFLOP a step, "
            f"{share:.0%} of the product's speed, {seconds[name] / usual:.2f} times the step of length 512 "
            "and k 2"
        )


if __name__ == "__main__":
    main()
