"""A training step of the baseline, of RETRO and of a RETROfit, beside rivals and beside the products.

GPT-2 of transformers, with the same depth, width and heads, stands beside the baseline; retro-pytorch beside
RETRO. The limit is one large product in the step's own precision, and the step's own FLOPs in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from peer import REQUIREMENT, peer_model
from torch.nn import functional as F
from training_step import SETTINGS, count_flops
from utilisation import MODEL, step_of

from retro.config import ModelConfig, RetrievalConfig, TrainingConfig
from retro.fitting.baseline import retrofit
from retro.machine import has_bfloat16, keep_freed_memory, products_in
from retro.model.retro import Retro
from retro.training.objective import make_optimizer
from speed.limits import NAMES, PRODUCT, product, product_name
from speed.rows import Rounds, Row

ROUNDS = 5
LARGE = replace(SETTINGS[-1].config(), vocab_size=MODEL.vocab_size)


@dataclass(frozen=True)
class Size:
    config: ModelConfig
    length: int
    num_tokens: int

    @property
    def title(self) -> str:
        config = self.config
        return (
            f"{config.num_layers} × {config.d_model}, {self.num_tokens // self.length} × {self.length} tokens"
        )


SIZES = (Size(MODEL, 512, 4096), Size(MODEL, 2048, 4096), Size(LARGE, 512, 512))
QUICK = (Size(replace(MODEL, vocab_size=256), 128, 128),)


def measure(work: Path, quick: bool) -> list[Row]:
    keep_freed_memory()
    dtypes = [torch.float32, *([torch.bfloat16] if has_bfloat16(torch.device("cpu")) else [])]
    rows: list[Row] = []
    for size in QUICK if quick else SIZES:
        for dtype in dtypes:
            print(f"  {size.title}, {NAMES[dtype]}", flush=True)
            rows += _of_size(size, dtype, 1 if quick else ROUNDS)
    return rows


def _of_size(size: Size, dtype: torch.dtype, rounds: int) -> Iterator[Row]:
    config, length = size.config, size.length
    baseline = Retro(config.baseline())
    models = {
        "baseline": (baseline, 0, f"GPT-2, transformers {transformers.__version__}"),
        "RETRO": (Retro(config), 2, REQUIREMENT),
        "RETROfit": (retrofit(baseline, config.retrieval or RetrievalConfig()), 2, ""),
    }
    calls: dict[str, Callable[[], object]] = {
        name: step_of(model, length, k, dtype, size.num_tokens) for name, (model, k, _) in models.items()
    }
    flops = {name: count_flops(call) for name, call in calls.items()}  # type: ignore[arg-type]
    calls["product"] = product(dtype)
    calls |= {
        f"{name}'s rival": call
        for name, call in {"baseline": gpt2_step(size, dtype), "RETRO": peer_step(size, dtype)}.items()
    }
    found = Rounds(calls, rounds, warmup=1)
    for name, (_, _, rival) in models.items():
        yield found.row(
            name,
            size.num_tokens,
            what=f"training step, {name}, {NAMES[dtype]}",
            size=f"{size.title}, {flops[name] / 1e9:,.0f} GFLOP",
            unit="tokens/s",
            rival=f"{name}'s rival" if rival else "",
            rival_name=rival,
            limit="product",
            limit_name=product_name(dtype),
            work=flops[name] / PRODUCT,
        )


def gpt2_step(size: Size, dtype: torch.dtype) -> Callable[[], None]:
    model = transformers.GPT2LMHeadModel(gpt2_config(size.config, size.length))
    return _rival_step(model, lambda tokens, _: model(tokens).logits, size, dtype)


def gpt2_config(config: ModelConfig, length: int) -> transformers.GPT2Config:
    return transformers.GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=length,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        # GPT-2's heads fill its width.
        n_head=max(1, config.d_model // config.head_dim),
        n_inner=config.ffw_dim,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )


def peer_step(size: Size, dtype: torch.dtype) -> Callable[[], None]:
    config = size.config
    assert config.retrieval is not None
    encoder = config.retrieval.encoder
    model = peer_model(
        num_tokens=config.vocab_size,
        max_seq_len=size.length,
        enc_depth=encoder.num_layers,
        enc_dim=encoder.d_model,
        enc_cross_attn_layers=(1,),
        dec_depth=config.num_layers,
        dec_dim=config.d_model,
        dec_cross_attn_layers=config.retrieval.cross_attention_layers,
        chunk_size=config.chunk_len,
        # It has eight heads, whatever is asked for; their size makes up for it.
        dim_head=max(1, config.num_heads * config.head_dim // 8),
    )
    return _rival_step(model, model, size, dtype)


def _rival_step(
    model: torch.nn.Module, forward: Callable[..., Any], size: Size, dtype: torch.dtype
) -> Callable[[], None]:
    """A step on random tokens, as a user of the rival would write it, with our optimizer."""
    shape = (size.num_tokens // size.length, size.length)
    tokens, targets = (torch.randint(1, size.config.vocab_size, shape) for _ in range(2))
    neighbours = torch.randint(1, size.config.vocab_size, (shape[0], size.length // 64, 2, 128))
    optimizer = make_optimizer(model, TrainingConfig())

    def step() -> None:
        optimizer.zero_grad()
        with products_in(dtype, tokens.device):
            logits = forward(tokens, neighbours)
        F.cross_entropy(logits.float().flatten(0, 1), targets.flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
