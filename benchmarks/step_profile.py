"""Where a training step's time goes: shares of torch's operations, matrix products and all else.

    python benchmarks/step_profile.py [--model RETRO] [--precision float32] [--tokens 4096] [--shapes]

The steps are those of `utilisation.py`: decoder 6 × 256, 4,096 tokens, length 512, two neighbours. A share
is of the time within operations themselves; the profiler makes small ones look a little larger than they
are.
"""

import argparse

import torch
from torch.profiler import ProfilerActivity, profile
from utilisation import MODEL, step_of

from retro.config import RetrievalConfig
from retro.fitting.baseline import retrofit
from retro.machine import keep_freed_memory
from retro.model.retro import Retro

PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "mkldnn::_linear_pointwise")


def model_of(name: str) -> tuple[Retro, int]:
    """The model, and how many neighbours it reads."""
    baseline = Retro(MODEL.baseline())
    if name == "baseline":
        return baseline, 0
    return (
        retrofit(baseline, MODEL.retrieval or RetrievalConfig()) if name == "RETROfit" else Retro(MODEL)
    ), 2


def show(name: str, precision: str, steps: int, num_tokens: int, top: int, shapes: bool) -> None:
    model, k = model_of(name)
    step = step_of(model, k=k, dtype=getattr(torch, precision), num_tokens=num_tokens)
    for _ in range(3):  # until freed memory is kept
        step()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=shapes) as found:
        for _ in range(steps):
            step()
    events = found.key_averages(group_by_input_shape=shapes)
    total = sum(event.self_cpu_time_total for event in events)
    products = sum(event.self_cpu_time_total for event in events if event.key in PRODUCTS)
    print(
        f"{name}, {precision}: {total / steps / 1e3:.0f} ms a step, {products / total:.1%} in matrix products"
    )
    for event in sorted(events, key=lambda event: -event.self_cpu_time_total)[:top]:
        place = f"  {event.input_shapes}" if shapes else ""
        share, calls = event.self_cpu_time_total / total, event.count / steps
        print(f"  {event.key:<44} {share:6.1%} {calls:7.0f} calls{place}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", nargs="+", default=["RETRO"], choices=["baseline", "RETRO", "RETROfit"])
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--top", type=int, default=16)
    parser.add_argument("--shapes", action="store_true", help="each operation by the shapes of its inputs")
    options = parser.parse_args()
    keep_freed_memory()
    for name in options.model:
        for precision in options.precision:
            show(name, precision, options.steps, options.tokens, options.top, options.shapes)


if __name__ == "__main__":
    main()
