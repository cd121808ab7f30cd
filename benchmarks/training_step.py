"""A training step of RETRO against retro-pytorch at the same dimensions, and against our own baseline per FLOP.

    python benchmarks/training_step.py

Decoder 4 × 192, encoder 1 × 128, 8 heads of 32, chunk 64, length 512, batch 8, k 2, vocabulary 4096, AdamW, float32.
"""

from collections.abc import Callable

import torch
from peer import REQUIREMENT, peer_model
from timing import interleaved_medians
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from retro.config import EncoderConfig, ModelConfig, TrainingConfig
from retro.model.retro import Retro
from retro.training.memory import keep_freed_memory
from retro.training.optimizer import make_optimizer

BATCH, LENGTH, K, VOCAB = 8, 512, 2, 4096
CONFIG = ModelConfig(
    vocab_size=VOCAB,
    d_model=192,
    num_layers=4,
    num_heads=8,
    head_dim=32,
    ffw_dim=768,
    cross_attention_layers=(2, 4),
    encoder=EncoderConfig(d_model=128, num_layers=1, num_heads=8, head_dim=32, ffw_dim=512),
)


def step_of(model: torch.nn.Module, forward: Callable[[], torch.Tensor], targets: torch.Tensor) -> Callable[[], None]:
    optimizer = make_optimizer(model, TrainingConfig())

    def step() -> None:
        loss = F.cross_entropy(forward().flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def count_flops(step: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def main() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(1, VOCAB, (BATCH, LENGTH))
    neighbours = torch.randint(1, VOCAB, (BATCH, LENGTH // 64, K, 128))
    mask = torch.ones(neighbours.shape[:3], dtype=torch.bool)
    targets = torch.randint(1, VOCAB, (BATCH, LENGTH))
    retro, baseline = Retro(CONFIG), Retro(CONFIG.baseline())
    peer = peer_model(
        num_tokens=VOCAB, max_seq_len=LENGTH, enc_dim=128, enc_depth=1, enc_cross_attn_layers=(1,), dec_depth=4, dec_dim=192,
        dec_cross_attn_layers=(2, 4), dim_head=32, chunk_size=64,
    )  # fmt: skip
    steps = {
        "retro": step_of(retro, lambda: retro(tokens, neighbours, mask), targets),
        "baseline": step_of(baseline, lambda: baseline(tokens), targets),
        "peer": step_of(peer, lambda: peer(tokens, neighbours), targets),
    }
    flops = {name: count_flops(step) for name, step in steps.items()}
    for allocator in ("as it comes", "freed memory kept"):
        if allocator == "freed memory kept":
            keep_freed_memory()
        seconds = interleaved_medians(steps)
        speed = {name: BATCH * LENGTH / value for name, value in seconds.items()}
        time_ratio, flop_ratio = seconds["retro"] / seconds["baseline"], flops["retro"] / flops["baseline"]
        print(
            f"allocator {allocator}: RETRO {speed['retro']:,.0f}, baseline {speed['baseline']:,.0f}, {REQUIREMENT} {speed['peer']:,.0f} tokens/s"
        )
        print(f"  training step, RETRO against {REQUIREMENT}: {seconds['peer'] / seconds['retro']:.2f} times the tokens a second (aim ≥ 3)")
        print(
            f"  RETRO step over baseline step: {time_ratio:.2f} times the time for {flop_ratio:.2f} times the FLOPs, "
            f"{time_ratio / flop_ratio:.2f} a FLOP (aim ≤ 1.15)"
        )
    print(f"parameters: RETRO {retro.num_parameters(True):,}, {REQUIREMENT} {sum(p.numel() for p in peer.parameters()):,}")
    print(
        f"GFLOP a step: RETRO {flops['retro'] / 1e9:.1f}, baseline {flops['baseline'] / 1e9:.1f}, {REQUIREMENT} {flops['peer'] / 1e9:.1f}"
    )


if __name__ == "__main__":
    main()
