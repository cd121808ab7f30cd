"""Sampling: tokens a second of cached steps, beside rivals and beside reading the weights once a token.

`generate` of transformers, cached and greedy, with a GPT-2 of the same depth and width stands beside our
baseline; our baseline beside RETRO; SmolLM2's own `generate` beside the model that comes with the package.
Reading the weights is the limit of one sequence; several share a reading.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from sampling import M, medium, small
from torch.utils.flop_counter import FlopCounterMode

from retro import catalogue
from retro.config import ModelConfig
from retro.generation.request import Choice, Request, Retrieval
from retro.generation.sampler import Sampler
from retro.model.retro import Retro
from retro.retrieval.retriever import Retriever, Searcher
from retro.workspace import open_run
from speed.limits import PRODUCT, product, product_name, reading, weight_bytes
from speed.neighbours import prepared
from speed.rows import Rounds, Row
from speed.training import gpt2_config

ROUNDS, COUNT = 5, 128
BATCHES = (1, 8)
SHIPPED = "smollm2-135m-retro"
SHIPPED_TOKENS = 32


def measure(work: Path, quick: bool) -> list[Row]:
    datastore = prepared(work, "licences", 0.1 if quick else 1.0)
    searcher = Retriever(datastore, 2)
    rows: list[Row] = []
    for title, config in (("4 × 192", small), ("8 × 512", medium)):
        print(f"  {title}", flush=True)
        for batch in BATCHES[:1] if quick else BATCHES:
            rows += _of_size(title, config(searcher.tokenizer.vocab_size), searcher, batch, quick)
        if quick:
            return rows
        rows.append(_prompt(title, config(searcher.tokenizer.vocab_size)))
    print("  SmolLM2-135M", flush=True)
    return [*rows, *_shipped(work)]


@torch.inference_mode()
def _of_size(title: str, config: ModelConfig, searcher: Searcher, batch: int, quick: bool) -> Iterator[Row]:
    count = 8 if quick else COUNT
    retro, baseline = Retro(config).eval(), Retro(config.baseline()).eval()
    rival = transformers.GPT2LMHeadModel(gpt2_config(config, 1024)).eval()
    prompt = searcher.tokenizer.decode(list(range(300, 300 + M)))
    ids = torch.randint(1, config.vocab_size, (batch, M))
    greedy = Choice(temperature=0.0, min_tokens=count)
    request = Request(prompts=[prompt] * batch, max_tokens=count, choice=greedy)
    # As many bytes as the baseline's weights, which RETRO reads as well; its encoder is read once a chunk.
    step_bytes = weight_bytes(baseline)
    calls: dict[str, Callable[[], object]] = {
        "on": partial(Sampler(retro, searcher).generate_all, request),
        "baseline": partial(Sampler(baseline, searcher).generate_all, request, retrieval=False),
        "generate": partial(_generate, rival, ids, count),
        "weights": _repeated(reading(step_bytes), count),
    }
    found = Rounds(calls, 1 if quick else ROUNDS, warmup=1)
    size = f"{title}, {batch} × {count} tokens"
    read = f"its weights read once a token, {step_bytes / 1e6:.0f} MB"
    rivals = (
        ("baseline", "generate", f"GPT-2, `generate` of transformers {transformers.__version__}"),
        ("on", "baseline", "our baseline"),
    )
    for name, other, called in rivals:
        yield found.row(
            name,
            batch * count,
            what=f"sampling, {'RETRO[ON], k 2' if name == 'on' else 'baseline'}",
            size=size,
            unit="tokens/s",
            rival=other,
            rival_name=called,
            limit="weights",
            limit_name=read,
        )


def _generate(model: Any, ids: torch.Tensor, count: int) -> object:
    return model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        min_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
    )


def _repeated(call: Callable[[], object], count: int) -> Callable[[], object]:
    def run() -> None:
        for _ in range(count):
            call()

    return run


@torch.inference_mode()
def _prompt(title: str, config: ModelConfig, length: int = 2048) -> Row:
    """Reading a long prompt with the neighbours of all its chunks."""
    model = Retro(config).eval()
    rival = transformers.GPT2LMHeadModel(gpt2_config(config, length)).eval()
    tokens = torch.randint(1, config.vocab_size, (1, length))
    neighbours = torch.randint(1, config.vocab_size, (1, length // M, 2, 2 * M))
    decoding = model.begin()

    def ours() -> None:
        decoding.prefill(tokens.tolist(), neighbours)

    with FlopCounterMode(display=False) as counter:
        ours()
    calls: dict[str, Callable[[], object]] = {
        "ours": ours,
        "rival": lambda: rival(tokens, logits_to_keep=1),
        "product": product(torch.float32),
    }
    return Rounds(calls, ROUNDS, warmup=1).row(
        "ours",
        length,
        what="reading a prompt, RETRO[ON], k 2",
        size=f"{title}, {length:,} tokens",
        unit="tokens/s",
        rival="rival",
        rival_name=f"GPT-2 without neighbours, transformers {transformers.__version__}",
        limit="product",
        limit_name=product_name(torch.float32),
        work=counter.get_total_flops() / PRODUCT,
    )


@torch.inference_mode()
def _shipped(work: Path) -> Iterator[Row]:
    """The fitted model that comes with the package, beside the base's own `generate`."""
    folder = work / "kjv-smollm2"
    for name in ("kjv", "static", "smollm2"):
        catalogue.fetch(name)
    command = [sys.executable, "-m", "retro"]
    asked = [["ingest", "kjv", "--base", "smollm2", "--out"], ["build", "--embedder", "static"]]
    for words in asked:
        subprocess.run([*command, *words, str(folder)], check=True, stdout=subprocess.DEVNULL)
    opened = open_run(folder, SHIPPED)
    model: Any = opened.model
    model.quicken()
    sampler = Sampler(model, Retriever(opened.datastore()))
    prompt = opened.tokenizer.decode(opened.store("test").document(0)[:96].tolist())
    ids = torch.tensor([opened.tokenizer.encode(prompt)])
    greedy = Choice(temperature=0.0, min_tokens=SHIPPED_TOKENS)
    draw = partial(sampler.generate, prompt, max_tokens=SHIPPED_TOKENS, choice=greedy)
    step_bytes = weight_bytes(model.base)
    calls: dict[str, Callable[[], object]] = {
        "off": partial(draw, retrieval=False),
        "on": partial(draw, retrieval=Retrieval(num_neighbours=1)),
        "base": partial(_generate, model.base, ids, SHIPPED_TOKENS),
        "weights": _repeated(reading(step_bytes), SHIPPED_TOKENS),
    }
    found = Rounds(calls, ROUNDS, warmup=1)
    for name, title in (("off", "retrieval off"), ("on", "k 1")):
        yield found.row(
            name,
            SHIPPED_TOKENS,
            what=f"sampling, {SHIPPED}, {title}",
            size=f"{SHIPPED_TOKENS} tokens behind {ids.shape[1]}",
            unit="tokens/s",
            rival="base",
            rival_name="SmolLM2's own `generate`",
            limit="weights",
            limit_name=f"its weights read once a token, {step_bytes / 1e6:.0f} MB",
        )
