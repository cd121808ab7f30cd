"""What a server costs beside the bare sampler: tokens a second, the first token under load, `explain`.

    python benchmarks/serving.py [--work WORKSPACE --name RUN | --run RUN --datastore PATH]
                                 [--rounds 5] [--tokens 128] [--clients 1 8 32]

The same prompts and numbers of tokens by the sampler at batch 1, 8 and 32 in this process, and by 1, 8 and 32
clients of `retro serve` in another, streamed; rounds take turns, medians are shown. Beside the seconds stand
the processor's own, which a busy machine does not stretch much. The clients are in this process, whose
sampler rests meanwhile: with two cores they share the second one with the part of the server that talks to
them. What they take of it is shown as well, and is part of what is measured.

Without a run one is made: 300 documents of made-up text, decoder 4 × 192, chunks of 64, k 2, static keys. The
prompts are the first 80 tokens of documents: of the training set of a workspace, or of a run's datastore.
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
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.listing import list_documents, read_document
from retro.retrieval.retriever import Retriever
from retro.workspace import Workspace, open_run

PROMPT_LEN = 80


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


def prompts_of(work: Path | None, datastore: Datastore, count: int) -> list[str]:
    """The beginnings of the first documents."""
    if work is not None:
        store = Workspace(work).store("train")
        tokens = [store.document(number).tolist()[:PROMPT_LEN] for number in range(count)]
    else:
        rows = list_documents(datastore, 100 * count).rows
        long = [row.content_hash for row in rows if row.num_tokens >= PROMPT_LEN][:count]
        tokens = [read_document(datastore, name, 0, PROMPT_LEN).tokens for name in long]
    assert len(tokens) == count, f"only {len(tokens)} documents are long enough to be prompts"
    return [datastore.tokenizer.decode(prompt) for prompt in tokens]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--work", type=Path)
    parser.add_argument("--name", default="retro")
    parser.add_argument("--run", type=Path, help="a run's own folder, from anywhere")
    parser.add_argument("--datastore", type=Path, help="what it retrieves from, or a workspace that has it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = options.work
        if work is None and options.run is None:
            work = make_work(Path(folder)).path
        place = options.run or work
        opened = open_run(place, options.name, options.datastore)
        datastore = opened.datastore()
        sampler = Sampler(opened.model, Retriever(datastore, 2))
        texts = prompts_of(work if place == work else None, datastore, max(options.clients))
        elsewhere = [] if options.datastore is None else ["--datastore", str(options.datastore)]
        serving = Serving(place, options.name, *elsewhere)
        try:
            report(sampler, serving, texts, options.rounds, options.tokens, options.clients)
        finally:
            serving.stop()


def report(
    sampler: Sampler, serving: Serving, texts: list[str], rounds: int, tokens: int, sizes: list[int]
) -> None:
    print(f"start to ready: {serving.ready:.1f} s")
    rates: dict[tuple[str, int], list[float]] = {}
    waits: dict[int, list[float]] = {}
    for number in range(rounds + 1):
        for size in sizes:
            one, own = bare(sampler, texts[:size], tokens)
            used, asking = serving.cpu_seconds(), time.process_time()
            other, first = served(serving.port, texts[:size], tokens)
            its = 1000 * (serving.cpu_seconds() - used) / (size * tokens)
            asked = 1000 * (time.process_time() - asking) / (size * tokens)
            if number:  # the first round warms up
                rates.setdefault(("sampler", size), []).append(one)
                rates.setdefault(("server", size), []).append(other)
                rates.setdefault(("cpu", size), []).append(its / own)
                rates.setdefault(("clients", size), []).append(asked / own)
                waits.setdefault(size, []).append(first)
    print(
        "clients  sampler tokens/s  server tokens/s  server/sampler  its processor time  the clients' own  "
        "first token, ms"
    )
    for size in sizes:
        one, other = (statistics.median(rates[name, size]) for name in ("sampler", "server"))
        ratio = statistics.median(
            b / a for a, b in zip(rates["sampler", size], rates["server", size], strict=True)
        )
        cpu, asked = (statistics.median(rates[name, size]) for name in ("cpu", "clients"))
        wait = 1000 * statistics.median(waits[size])
        speeds = f"{size:7}  {one:16.0f}  {other:15.0f}  {ratio:14.2f}"
        print(f"{speeds}  {cpu:17.2f} x  {asked:14.2f} x  {wait:15.0f}")
    for name, retro in (("worth", {"worth": True}), ("explain", {"explain": True})):
        times = []
        for _ in range(rounds):
            plain, _ = served(serving.port, texts[:1], tokens)
            more, _ = served(serving.port, texts[:1], tokens, retro=retro)
            times.append(plain / more - 1)
        print(f"{name}: {statistics.median(times):.2f} times the answer's own time on top of it")


if __name__ == "__main__":
    main()
