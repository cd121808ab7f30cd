"""What retrieval costs a fitted model: sampling beside the base's own `generate`, and a step of fitting.

    python benchmarks/fitting_speed.py WORK RUN [--tokens 192] [--rounds 3] [--k 1 2]

Sampling: tokens a second of the base's cached `generate` (greedy, batch of one) and of our sampler without
and with retrieval, taking turns; the median of the rounds, as a part of the base's. *Quick* is as `retro
sample` does it: neighbours are read in bfloat16 where the hardware has it. A step: forward and
backward of the run's own training step beside a plain forward and backward of the base (all its weights) on
the same tokens, and the ratio of their FLOPs: 2 for each weight and token forwards, 4 backwards. Memory: the
most that this process held.
"""

import argparse
import resource
from functools import partial
from pathlib import Path
from typing import Any

import torch
from timing import interleaved_medians

from retro.generation.request import Choice, Retrieval
from retro.generation.sampler import Sampler
from retro.retrieval.retriever import Retriever
from retro.training.batches import PackedBatches
from retro.workspace import OpenRun, open_run


def sampling(opened: OpenRun, num_tokens: int, rounds: int, ks: list[int]) -> None:
    model: Any = opened.model
    sampler = Sampler(model, Retriever(opened.datastore()))
    store = opened.store("test")
    prompt = opened.tokenizer.decode(store.document(0)[:96].tolist())
    ids = torch.tensor([opened.tokenizer.encode(prompt)])
    # No end, so that all give as many tokens.
    greedy = Choice(temperature=0.0, min_tokens=num_tokens)
    asked: dict[str, Any] = {
        "base, its own generate": lambda: model.base.generate(
            ids, max_new_tokens=num_tokens, min_new_tokens=num_tokens, do_sample=False, pad_token_id=0
        ),
        "sampler, retrieval off": lambda: sampler.generate(
            prompt, max_tokens=num_tokens, choice=greedy, retrieval=False
        ),
    }
    plain = model.reader
    model.quicken()
    quick = model.reader

    def retrieving(k: int, reader: Any) -> None:
        model.reader = reader
        sampler.generate(prompt, max_tokens=num_tokens, choice=greedy, retrieval=Retrieval(num_neighbours=k))

    for k in ks:
        asked[f"sampler, k = {k}"] = partial(retrieving, k, plain)
        if quick is not plain:
            asked[f"sampler, k = {k}, quick"] = partial(retrieving, k, quick)
    medians = interleaved_medians(asked, rounds, warmup=1)
    model.reader = plain
    base = medians["base, its own generate"]
    for name, median in medians.items():
        print(
            f"{name:<26} {num_tokens / median:6.1f} tokens/s, {base / median:.2f} of the base's", flush=True
        )


def a_step(opened: OpenRun, rounds: int, ks: list[int]) -> None:
    model: Any = opened.model
    neighbours = opened.neighbours("train")
    store = neighbours.table.store
    config = model.config
    batches = PackedBatches(store, config.chunk_len, 512, 1, 0, neighbours, max(ks))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    within = any(p is model.bias for p in trained) or model.cross is not None

    def plain(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        model.base.requires_grad_(True)
        (-model.score(tokens, targets).log_probs.sum()).backward()
        model.base.zero_grad(set_to_none=True)
        model.base.requires_grad_(False)

    def step(tokens: torch.Tensor, targets: torch.Tensor, found: torch.Tensor, mask: torch.Tensor) -> None:
        model.train()
        (-model.score(tokens, targets, found, mask).log_probs.sum()).backward()
        model.zero_grad(set_to_none=True)

    batch = batches[0]
    for k in ks:
        tokens, targets = batch.tokens, batch.targets
        assert batch.neighbours is not None
        assert batch.neighbour_mask is not None
        found, mask = batch.neighbours[:, :, :k], batch.neighbour_mask[:, :, :k]
        candidates = {
            "plain": partial(plain, tokens, targets),
            "step": partial(step, tokens, targets, found, mask),
        }
        medians = interleaved_medians(candidates, rounds, warmup=1)
        ratio = medians["step"] / medians["plain"]
        # A vote alone reads neighbours through the first layers only.
        part = 1.0 if model.bias is not None else config.pointer_layer / model.base.config.num_hidden_layers
        length = tokens.numel()
        flops = (part * found.numel() + length * (2 if within else 1)) / (3 * length)
        print(
            f"a step with k = {k}: {ratio:.2f} times the base's forward and backward, "
            f"{flops:.2f} times its FLOPs, so {ratio / flops:.2f} of what they would take",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("run")
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--k", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    opened = open_run(options.work, options.run)
    with torch.no_grad():
        sampling(opened, options.tokens, options.rounds, options.k)
    a_step(opened, options.rounds, options.k)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"at most {most:.1f} GB were held")


if __name__ == "__main__":
    main()
