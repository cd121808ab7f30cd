"""What a server costs beside the bare sampler: tokens a second, the first token under load, `explain`.

    python benchmarks/serving.py [--work WORKSPACE --name RUN] [--rounds 5] [--tokens 128]

The same prompts and numbers of tokens by the sampler at batch 1, 8 and 32 in this process, and by 1, 8 and 32
clients of `retro serve` in another, streamed; rounds take turns, medians are shown. Beside the seconds stand
the processor's own, which a busy machine does not stretch. Without a workspace one is made: 300 documents of
made-up text, decoder 4 × 192, chunks of 64, k 2, static keys.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from load import Answer, Serving, ask, make_work

from retro.generation.request import Choice, Request
from retro.generation.sampler import Sampler
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace, open_run

SIZES = (1, 8, 32)


def bodies(prompts: list[str], tokens: int, **more: Any) -> list[dict[str, Any]]:
    common = {"max_tokens": tokens, "min_tokens": tokens, "seed": 0, "temperature": 0.8, "stream": True}
    return [{"prompt": prompt, **common, **more} for prompt in prompts]


async def all_at_once(port: int, asked: list[dict[str, Any]]) -> list[Answer]:
    return list(await asyncio.gather(*(ask(port, body) for body in asked)))


def bare(sampler: Sampler, prompts: list[str], tokens: int) -> tuple[float, float]:
    """Tokens a second, and milliseconds of the processor a token."""
    request = Request(prompts=prompts, max_tokens=tokens, choice=Choice(temperature=0.8, min_tokens=tokens))
    started, used = time.perf_counter(), time.process_time()
    sampler.generate_all(request)
    count = len(prompts) * tokens
    return count / (time.perf_counter() - started), 1000 * (time.process_time() - used) / count


def served(port: int, prompts: list[str], tokens: int, **more: Any) -> tuple[float, float]:
    """Tokens a second, and the median wait for the first token."""
    started = time.perf_counter()
    answers = asyncio.run(all_at_once(port, bodies(prompts, tokens, **more)))
    took = time.perf_counter() - started
    assert all(answer.status == 200 for answer in answers), [answer.status for answer in answers]
    return len(prompts) * tokens / took, statistics.median(answer.first for answer in answers)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path)
    parser.add_argument("--name", default="retro")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or make_work(Path(folder)).path
        opened = open_run(work, options.name)
        sampler = Sampler(opened.model, Retriever(opened.datastore(), 2))
        store = Workspace(work).store("train")
        texts = [sampler.tokenizer.decode(store.document(number).tolist()[:80]) for number in range(32)]
        serving = Serving(work, options.name)
        try:
            report(sampler, serving, texts, options.rounds, options.tokens)
        finally:
            serving.stop()


def report(sampler: Sampler, serving: Serving, texts: list[str], rounds: int, tokens: int) -> None:
    print(f"start to ready: {serving.ready:.1f} s")
    rates: dict[tuple[str, int], list[float]] = {}
    waits: dict[int, list[float]] = {}
    for number in range(rounds + 1):
        for size in SIZES:
            one, own = bare(sampler, texts[:size], tokens)
            used = serving.cpu_seconds()
            other, first = served(serving.port, texts[:size], tokens)
            its = 1000 * (serving.cpu_seconds() - used) / (size * tokens)
            if number:  # the first round warms up
                rates.setdefault(("sampler", size), []).append(one)
                rates.setdefault(("server", size), []).append(other)
                rates.setdefault(("cpu", size), []).append(its / own)
                waits.setdefault(size, []).append(first)
    print("clients  sampler tokens/s  server tokens/s  server/sampler  its processor time  first token, ms")
    for size in SIZES:
        one, other = (statistics.median(rates[name, size]) for name in ("sampler", "server"))
        ratio = statistics.median(
            b / a for a, b in zip(rates["sampler", size], rates["server", size], strict=True)
        )
        cpu, wait = statistics.median(rates["cpu", size]), 1000 * statistics.median(waits[size])
        print(f"{size:7}  {one:16.0f}  {other:15.0f}  {ratio:14.2f}  {cpu:17.2f} x  {wait:15.0f}")
    for name, retro in (("worth", {"worth": True}), ("explain", {"explain": True})):
        times = []
        for _ in range(rounds):
            plain, _ = served(serving.port, texts[:1], tokens)
            more, _ = served(serving.port, texts[:1], tokens, retro=retro)
            times.append(plain / more - 1)
        print(f"{name}: {statistics.median(times):.2f} times the answer's own time on top of it")


if __name__ == "__main__":
    main()
