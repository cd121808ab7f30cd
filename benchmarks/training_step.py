"""A training step of RETRO against retro-pytorch at the same dimensions, and against our own baseline per
FLOP.

    python benchmarks/training_step.py [SETTING]

Small: decoder 4 × 192, encoder 1 × 128, chunk 64, length 512, batch 8, k 2, vocabulary 4096,
cross-attention in layers 2 and 4, AdamW, float32. Two settings of the heads: 4 heads that fill the width,
as a user would ask both libraries for (retro-pytorch ignores `heads` and runs 8 of 64); and 8 heads of 32
on both sides, where the two do almost the same number of FLOPs. Large: decoder 12 × 768, encoder 2 × 512,
cross-attention in layers 6, 9 and 12, one sequence, 8 heads of 64 on both sides. Each is timed with the
memory allocator as it comes, and with freed memory kept, which `retro train` switches on for itself; the
switch is global, so in that line the peer has it too. Where the hardware has bfloat16 `retro train` uses it
for the matrix products, and the peer, which leaves that to its user, is timed both ways. A part of a
setting's title runs that one alone.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from peer import REQUIREMENT, peer_model
from timing import interleaved_medians
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from retro.config import EncoderConfig, ModelConfig, RetrievalConfig, TrainingConfig
from retro.machine import has_bfloat16, keep_freed_memory
from retro.model.retro import Retro
from retro.training.objective import make_optimizer

LENGTH, K, VOCAB = 512, 2, 4096


@dataclass(frozen=True)
class Setting:
    """One size for both libraries; depth and width of decoder and encoder, number and size of their heads."""

    title: str
    decoder: tuple[int, int]
    encoder: tuple[int, int]
    heads: tuple[int, int]
    encoder_heads: tuple[int, int]
    places: tuple[int, ...]
    peer: dict[str, int]
    batch: int = 8

    def config(self) -> ModelConfig:
        depth, width = self.encoder
        encoder = EncoderConfig(
            d_model=width,
            num_layers=depth,
            num_heads=self.encoder_heads[0],
            head_dim=self.encoder_heads[1],
            ffw_dim=4 * width,
        )
        depth, width = self.decoder
        return ModelConfig(
            vocab_size=VOCAB,
            d_model=width,
            num_layers=depth,
            num_heads=self.heads[0],
            head_dim=self.heads[1],
            ffw_dim=4 * width,
            retrieval=RetrievalConfig(cross_attention_layers=self.places, encoder=encoder),
        )


SETTINGS = (
    Setting("small, 4 heads asked for", (4, 192), (1, 128), (4, 48), (4, 32), (2, 4), {"heads": 4}),
    Setting(
        "small, 8 heads of 32 on both sides", (4, 192), (1, 128), (8, 32), (8, 32), (2, 4), {"dim_head": 32}
    ),
    Setting(
        "12 × 768, 8 heads of 64 on both sides",
        (12, 768),
        (2, 512),
        (8, 64),
        (8, 64),
        (6, 9, 12),
        {"dim_head": 64},
        batch=1,
    ),
)


def step_of(
    model: torch.nn.Module, forward: Callable[[], torch.Tensor], targets: torch.Tensor
) -> Callable[[], None]:
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


def steps_of(setting: Setting) -> tuple[dict[str, Callable[[], None]], dict[str, int]]:
    """A training step of each model on the same random batch, and its FLOPs."""
    torch.manual_seed(0)
    tokens, targets = (torch.randint(1, VOCAB, (setting.batch, LENGTH)) for _ in range(2))
    neighbours = torch.randint(1, VOCAB, (setting.batch, LENGTH // 64, K, 128))
    mask = torch.ones(neighbours.shape[:3], dtype=torch.bool)
    retro, baseline = Retro(setting.config()), Retro(setting.config().baseline())
    peer = peer_model(
        num_tokens=VOCAB,
        max_seq_len=LENGTH,
        enc_depth=setting.encoder[0],
        enc_dim=setting.encoder[1],
        enc_cross_attn_layers=(1,),
        dec_depth=setting.decoder[0],
        dec_dim=setting.decoder[1],
        dec_cross_attn_layers=setting.places,
        chunk_size=64,
        **setting.peer,
    )
    steps = {
        "retro": step_of(retro, lambda: retro(tokens, neighbours, mask), targets),
        "baseline": step_of(baseline, lambda: baseline(tokens), targets),
        "peer": step_of(peer, lambda: peer(tokens, neighbours), targets),
    }
    flops = {name: count_flops(step) for name, step in steps.items()}
    if has_bfloat16(torch.device("cpu")):
        steps["retro, bfloat16"] = step_of(
            retro, in_bfloat16(lambda: retro(tokens, neighbours, mask)), targets
        )
        steps["peer, bfloat16"] = step_of(peer, in_bfloat16(lambda: peer(tokens, neighbours)), targets)
    return steps, flops


def in_bfloat16(forward: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def wrapped() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward().float()

    return wrapped


def main() -> None:
    chosen = sys.argv[1] if len(sys.argv) > 1 else ""
    prepared = [(setting, *steps_of(setting)) for setting in SETTINGS if chosen in setting.title]
    alone: dict[str, float] = {}
    for allocator in ("allocator as it comes", "freed memory kept"):
        if allocator == "freed memory kept":
            keep_freed_memory()
        for setting, steps, flops in prepared:
            title, tokens = setting.title, setting.batch * LENGTH
            seconds = interleaved_medians(steps)
            alone.setdefault(title, seconds["peer"])
            speed = {
                name: f"{tokens / seconds[name]:,.0f} tokens/s ({flops[name] / 1e9:.0f} GFLOP a step)"
                for name in flops
            }
            time_ratio, flop_ratio = (
                seconds["retro"] / seconds["baseline"],
                flops["retro"] / flops["baseline"],
            )
            print(f"{title}, {allocator}")
            print(f"  RETRO {speed['retro']}, baseline {speed['baseline']}, {REQUIREMENT} {speed['peer']}")
            print(
                f"  RETRO trains {seconds['peer'] / seconds['retro']:.2f} times the tokens a second of "
                f"{REQUIREMENT}"
            )
            if allocator == "freed memory kept":
                print(
                    f"  RETRO in float32 as `retro train` runs it against {REQUIREMENT} as it comes: "
                    f"{alone[title] / seconds['retro']:.2f} times"
                )
            if "retro, bfloat16" in seconds:
                own = seconds["retro, bfloat16"]
                ratios = [alone[title] / own, seconds["peer"] / own, seconds["peer, bfloat16"] / own]
                print(
                    f"  RETRO in bfloat16: {ratios[0]:.2f} times {REQUIREMENT} as it comes, "
                    f"{ratios[1]:.2f} times in this setting, {ratios[2]:.2f} times where it runs in "
                    "bfloat16 too"
                )
            print(
                f"  RETRO step over baseline step: {time_ratio:.2f} times the time for {flop_ratio:.2f} "
                "times the FLOPs, "
                f"{time_ratio / flop_ratio:.2f} times the ratio"
            )


if __name__ == "__main__":
    main()
