"""Scoring: tokens a second beside the model's bare forward, and several k at once beside each alone."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from scoring_several import STRIDE, prepared, score
from torch.utils.flop_counter import FlopCounterMode

from retro.machine import keep_freed_memory
from retro.model.retro import Retro
from retro.retrieval.neighbours import Neighbours
from retro.scoring.windows import Window, batch_inputs, batch_targets, batches_of, windows_of
from scoring import WINDOW, candidates, models, spread
from speed.limits import PRODUCT, product, product_name
from speed.rows import Rounds, Row

ROUNDS = 3
BATCHES = {"tiny": 4, "12 × 768": 1}
"""Windows in a batch of each model."""
KS = (0, 2, 10)
SEVERAL = ([0, 1, 2, 4, 10], [0, 50])


def measure(work: Path, quick: bool) -> list[Row]:
    keep_freed_memory()
    neighbours = prepared(work / "scoring")
    store = neighbours.store
    rows: list[Row] = []
    for name, config in models(store.artifact.counts["vocab_size"], store.pad_id).items():
        if quick and name != "tiny":
            continue
        model = Retro(replace(config)).eval()
        every = list(batches_of(windows_of(store, WINDOW, STRIDE), BATCHES[name] * WINDOW))
        batches = spread(every, 1 if quick else 2)
        print(f"  {name}", flush=True)
        for k in KS[:1] if quick else KS:
            rows.append(_of_k(name, model, neighbours, batches, k, 1 if quick else ROUNDS))
        if name == "tiny":
            rows += _several(model, neighbours, batches, quick)
    return rows


def _of_k(
    name: str, model: Retro, neighbours: Neighbours, batches: list[list[Window]], k: int, rounds: int
) -> Row:
    calls = candidates(model, neighbours, batches, k)
    with FlopCounterMode(display=False) as counter:
        calls["bare"]()
    flops = counter.get_total_flops()
    calls["product"] = product(torch.float32)
    num_tokens = sum(window.num_tokens for batch in batches for window in batch)
    return Rounds(calls, rounds, warmup=1).row(
        "scoring",
        num_tokens,
        what=f"scoring, {name}, k {k}",
        size=f"{len(batches)} × {len(batches[0])} windows of {WINDOW}",
        unit="tokens/s",
        rival="bare",
        rival_name="the model's bare forward",
        limit="product",
        limit_name=product_name(torch.float32),
        work=flops / PRODUCT,
    )


def _several(model: Retro, neighbours: Neighbours, batches: list[list[Window]], quick: bool) -> Iterator[Row]:
    """Several k as `retro evaluate` scores them, beside one scoring for each."""
    for ks in SEVERAL[:1] if quick else SEVERAL:
        found = []
        for windows in batches[:1] if max(ks) > 10 else batches:
            tokens, *retrieved = batch_inputs(neighbours.table, windows, neighbours, max(ks))
            found.append([tokens, batch_targets(neighbours.store, windows), *retrieved])

        def every(together: bool, ks: list[int], found: list[list[torch.Tensor]]) -> None:
            for batch in found:
                score(model, batch, ks, together)

        calls = {name: partial(every, name == "together", ks, found) for name in ("together", "alone")}
        num_tokens = len(ks) * sum(batch[0].numel() for batch in found)
        yield Rounds(calls, 1 if quick else ROUNDS, warmup=0).row(
            "together",
            num_tokens,
            what=f"scoring, tiny, with all of k {', '.join(map(str, ks))}",
            size=f"{len(found)} × {len(found[0][0])} windows of {WINDOW}",
            unit="tokens/s",
            rival="alone",
            rival_name="each k by itself",
        )
