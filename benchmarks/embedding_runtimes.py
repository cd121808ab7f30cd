"""Keys by one thread: the plain `AutoModel` loop, ours, and OpenVINO in the place of our layers.

    python benchmarks/embedding_runtimes.py [--chunks 256] [--rounds 5] [--embedder minilm]

OpenVINO reads the batches that ours reads, so that only what multiplies differs. Printed is the median of
processor time as a ratio to the plain loop, and the part of the ten nearest chunks that are those of the
plain loop's keys.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import transformers
from embedding import overlap_at_10, plain_loop, read_chunks
from peer import bring
from torch import nn

from retro import catalogue
from retro.machine import has_bfloat16
from retro.retrieval.embedder import BertEmbedder, open_embedder

OPENVINO = "openvino==2026.4.1"
TELEMETRY = "openvino-telemetry==2025.2.0"
"""OpenVINO does not start without it."""


class HiddenStates(nn.Module):
    """The last hidden states alone, for the converter."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return found


class ByOpenVino(BertEmbedder):
    """Ours, but for the layers."""

    def __init__(self, name: str, where: str, precision: str) -> None:
        super().__init__(name, where)
        bring(TELEMETRY, "openvino_telemetry")
        openvino = bring(OPENVINO, "openvino")
        model = transformers.AutoModel.from_pretrained(where, attn_implementation="eager").eval()
        example = torch.ones(2, 16, dtype=torch.long)
        converted = openvino.convert_model(
            HiddenStates(model), example_input={"input_ids": example, "attention_mask": example}
        )
        settings = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": 1}
        self._compiled: Any = openvino.Core().compile_model(converted, "CPU", settings)

    def _hidden_states(self, ids: torch.Tensor, is_real: torch.Tensor) -> torch.Tensor:
        compiled = getattr(self, "_compiled", None)  # the parent looks at its width before that
        if compiled is None:
            return super()._hidden_states(ids, is_real)
        return torch.from_numpy(compiled([ids.numpy(), is_real.long().numpy()])[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--chunks", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--embedder", default="minilm")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in ("enwik8", options.embedder):
        catalogue.fetch(name)
    texts = read_chunks()[: options.chunks]
    folder = str(catalogue.folder_of(options.embedder))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    calls: dict[str, Callable[[], np.ndarray]] = {"plain loop": lambda: plain_loop(tokenizer, model, texts)}
    precisions = {"float32": "f32", "bfloat16": "bf16"}
    if not has_bfloat16(torch.device("cpu")):
        del precisions["bfloat16"]
    for precision, word in precisions.items():
        ours = open_embedder(options.embedder, precision)
        theirs = ByOpenVino(options.embedder, folder, word)
        calls[f"ours, {precision}"] = lambda embedder=ours: embedder.embed(texts)  # type: ignore[misc]
        calls[f"OpenVINO, {precision}"] = lambda embedder=theirs: embedder.embed(texts)  # type: ignore[misc]
    keys = {name: call() for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(options.rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            seconds[name].append(time.process_time() - started)
    plain = seconds["plain loop"]
    for name, taken in seconds.items():
        ratios = [one / other for one, other in zip(plain, taken, strict=True)]
        print(
            f"{name:<20} {statistics.median(ratios):.2f} times ({min(ratios):.2f} – {max(ratios):.2f}), "
            f"overlap@10 {overlap_at_10(keys['plain loop'], keys[name]):.4f}"
        )


if __name__ == "__main__":
    main()
