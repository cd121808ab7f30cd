"""A training step of RETRO against retro-pytorch at the same dimensions, and against our own baseline per FLOP.

    python benchmarks/training_step.py

Decoder 4 × 192, encoder 1 × 128, chunk 64, length 512, batch 8, k 2, vocabulary 4096, cross-attention in layers 2 and 4, AdamW,
float32. Two settings of the heads: 4 heads that fill the width, as a user would ask both libraries for (retro-pytorch ignores
`heads` and runs 8 of 64); and 8 heads of 32 on both sides, where the two do almost the same number of FLOPs. Each is timed with
the memory allocator as it comes, and with freed memory kept, which `retro train` switches on for itself; the switch is global,
so in that line the peer has it too.
"""

from collections.abc import Callable
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Heads:
    """One setting of the attention heads for both libraries."""

    title: str
    decoder: tuple[int, int]
    encoder: tuple[int, int]
    peer: dict[str, int]

    def config(self) -> ModelConfig:
        encoder = EncoderConfig(d_model=128, num_layers=1, num_heads=self.encoder[0], head_dim=self.encoder[1], ffw_dim=512)
        return ModelConfig(
            vocab_size=VOCAB, d_model=192, num_layers=4, num_heads=self.decoder[0], head_dim=self.decoder[1], ffw_dim=768,
            cross_attention_layers=(2, 4), encoder=encoder,
        )  # fmt: skip


SETTINGS = (
    Heads("4 heads asked for", (4, 48), (4, 32), {"heads": 4}),
    Heads("8 heads of 32 on both sides", (8, 32), (8, 32), {"dim_head": 32}),
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


def steps_of(heads: Heads) -> tuple[dict[str, Callable[[], None]], dict[str, int]]:
    """A training step of each model on the same random batch, and its FLOPs."""
    torch.manual_seed(0)
    tokens, targets = (torch.randint(1, VOCAB, (BATCH, LENGTH)) for _ in range(2))
    neighbours = torch.randint(1, VOCAB, (BATCH, LENGTH // 64, K, 128))
    mask = torch.ones(neighbours.shape[:3], dtype=torch.bool)
    retro, baseline = Retro(heads.config()), Retro(heads.config().baseline())
    peer = peer_model(
        num_tokens=VOCAB, max_seq_len=LENGTH, enc_dim=128, enc_depth=1, enc_cross_attn_layers=(1,), dec_depth=4, dec_dim=192,
        dec_cross_attn_layers=(2, 4), chunk_size=64, **heads.peer,
    )  # fmt: skip
    steps = {
        "retro": step_of(retro, lambda: retro(tokens, neighbours, mask), targets),
        "baseline": step_of(baseline, lambda: baseline(tokens), targets),
        "peer": step_of(peer, lambda: peer(tokens, neighbours), targets),
    }
    return steps, {name: count_flops(step) for name, step in steps.items()}


def main() -> None:
    prepared = {heads.title: steps_of(heads) for heads in SETTINGS}
    alone: dict[str, float] = {}
    for allocator in ("allocator as it comes", "freed memory kept"):
        if allocator == "freed memory kept":
            keep_freed_memory()
        for title, (steps, flops) in prepared.items():
            seconds = interleaved_medians(steps)
            alone.setdefault(title, seconds["peer"])
            speed = {
                name: f"{BATCH * LENGTH / value:,.0f} tokens/s ({flops[name] / 1e9:.0f} GFLOP a step)" for name, value in seconds.items()
            }
            time_ratio, flop_ratio = seconds["retro"] / seconds["baseline"], flops["retro"] / flops["baseline"]
            print(f"{title}, {allocator}")
            print(f"  RETRO {speed['retro']}, baseline {speed['baseline']}, {REQUIREMENT} {speed['peer']}")
            print(f"  RETRO trains {seconds['peer'] / seconds['retro']:.2f} times the tokens a second of {REQUIREMENT}")
            if allocator == "freed memory kept":
                print(f"  RETRO as `retro train` runs it against {REQUIREMENT} as it comes: {alone[title] / seconds['retro']:.2f} times")
            print(
                f"  RETRO step over baseline step: {time_ratio:.2f} times the time for {flop_ratio:.2f} times the FLOPs, "
                f"{time_ratio / flop_ratio:.2f} times the ratio"
            )


if __name__ == "__main__":
    main()
