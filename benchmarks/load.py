"""Many clients of a server on this machine, for a while: is every answer there, and the right one?

    python benchmarks/load.py [--clients 64] [--seconds 120] [--work WORKSPACE --name RUN]

Starts `retro serve` in a process of its own and asks it from this one. A small set of requests, streamed and
whole, short and long, with and without retrieval, is asked one by one first; under load every answer must be
the same, to the character. Some clients leave in the middle, some read slowly. Told every ten seconds:
answers, tokens a second, the wait for the first token, and the server's memory. Only loopback is asked.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retro.config import CorpusConfig, DatastoreConfig, EncoderConfig, ModelConfig, RetrievalConfig
from retro.corpus.ingest import ingest
from retro.jobs.retrieval import build
from retro.model.retro import Retro
from retro.run import Origin, write_run
from retro.workspace import Workspace

CHUNK = 64


@dataclass
class Answer:
    """What a client got."""

    status: int
    text: str = ""
    tokens: int = 0
    first: float = 0.0
    """Seconds to the first token."""
    seconds: float = 0.0
    wait: int = 0


async def ask(port: int, body: dict[str, Any], leave_after: int = 0, pause: float = 0.0) -> Answer:
    """One request over a connection of its own, by hand: a client should cost less than what it measures."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    try:
        sent = json.dumps(body).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
        )
        writer.write(head.encode() + sent)
        status = int((await reader.readline()).split()[1])
        answer = Answer(status)
        while (line := await reader.readline()) not in (b"\r\n", b""):
            if line.lower().startswith(b"retry-after:"):
                answer.wait = int(line.split(b":")[1])
        if status == 200 and body.get("stream"):
            await _read_stream(reader, answer, started, leave_after, pause)
        elif status == 200:
            found = json.loads(await reader.read())
            answer.text = "|".join(choice["text"] for choice in found["choices"])
            answer.tokens = found["usage"]["completion_tokens"]
            answer.first = time.perf_counter() - started
        answer.seconds = time.perf_counter() - started
        return answer
    finally:
        writer.close()


async def _read_stream(
    reader: asyncio.StreamReader, answer: Answer, started: float, leave_after: int, pause: float
) -> None:
    texts: dict[int, str] = {}
    done = False
    while line := await reader.readline():
        if line.startswith(b"data: [DONE]"):
            done = True
        elif line.startswith(b"data: {"):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
                answer.tokens += bool(choice["text"])
                if answer.tokens == 1 and not answer.first:
                    answer.first = time.perf_counter() - started
        if leave_after and answer.tokens >= leave_after:
            answer.status = 0
            return
        if pause:
            await asyncio.sleep(pause)
    if not done:
        answer.status = -1
    answer.text = "|".join(text for _, text in sorted(texts.items()))


def make_work(folder: Path, vocab_size: int = 2048) -> Workspace:
    """A workspace of made-up text that repeats itself, and a model with random weights."""
    rng = random.Random(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 4))) for _ in range(3000)]
    sentences = [" ".join(rng.choices(words, k=12)) + ".\n" for _ in range(800)]
    texts = folder / "texts"
    texts.mkdir(parents=True)
    for number in range(300):
        (texts / f"{number:03d}.txt").write_text("".join(rng.choices(sentences, k=60)))
    work = Workspace(folder / "work")
    ingest(work, [str(texts)], CorpusConfig(vocab_size=vocab_size))
    build(work, DatastoreConfig(embedder="static", chunk_len=CHUNK))
    encoder = EncoderConfig(d_model=128, num_layers=1, num_heads=4, head_dim=32, ffw_dim=512)
    config = ModelConfig(
        vocab_size=vocab_size,
        d_model=192,
        num_layers=4,
        num_heads=4,
        head_dim=48,
        ffw_dim=768,
        chunk_len=CHUNK,
        retrieval=RetrievalConfig(cross_attention_layers=(2, 4), encoder=encoder),
    )
    model = Retro(config).eval()
    run = work.path / "runs" / "retro"
    run.mkdir(parents=True)
    write_run(model, run, {}, Origin(tokenizer=work.tokenizer_path))
    return work


class Serving:
    """`retro serve` in a process of its own."""

    def __init__(self, work: Path, name: str, *options: str) -> None:
        started = time.perf_counter()
        command = [sys.executable, "-m", "retro", "serve", str(work), "--name", name, "--port", "0", *options]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        assert self.process.stdout is not None
        said = self.process.stdout.readline() + self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
        assert found, said
        self.port = int(found[1])
        self.ready = time.perf_counter() - started

    def megabytes(self) -> float:
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return 0.0

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(60)


def requests_of(texts: list[str]) -> list[dict[str, Any]]:
    """Unlike requests, each with one right answer."""
    ways: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "stream": True},
        {"seed": 1, "stream": True, "retro": {"num_neighbours": 4}},
        {"seed": 2, "retro": {"retrieval": False}},
        {"seed": 3, "n": 2, "stream": True},
        {"temperature": 0, "stream": True, "retro": {"worth": True}},
        {"seed": 4, "frequency_penalty": 0.5, "logprobs": 1},
        {"seed": 5, "stream": True, "retro": {"explain": True, "num_neighbours": 2}},
    ]
    return [
        {
            "prompt": texts[number][: 60 + 90 * (number % 5)],
            "max_tokens": 16 + 24 * (number % 4),
            **ways[number % 8],
        }
        for number in range(24)
    ]


@dataclass
class Tally:
    """What happened so far."""

    right: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    refused: int = 0
    left: int = 0
    tokens: int = 0
    first: list[float] = field(default_factory=list)


async def client(
    port: int, number: int, asked: list[tuple[dict[str, Any], str]], tally: Tally, end: float
) -> None:
    rng = random.Random(number)
    while time.perf_counter() < end:
        body, expected = rng.choice(asked)
        leaves = body.get("stream") and rng.random() < 0.05
        pause = 0.02 if body.get("stream") and rng.random() < 0.05 else 0.0
        try:
            answer = await ask(port, body, leave_after=5 if leaves else 0, pause=pause)
        except (OSError, asyncio.IncompleteReadError, ValueError, IndexError) as error:
            tally.lost.append(f"{type(error).__name__}: {error}")
            continue
        if answer.status == 429:
            tally.refused += 1
            await asyncio.sleep(min(answer.wait, 1) * rng.random())
        elif answer.status == 0:
            tally.left += 1
        elif answer.status != 200:
            tally.lost.append(f"status {answer.status}")
        elif answer.text != expected:
            tally.wrong.append(f"{answer.text!r} for {expected!r}")
        else:
            tally.right += 1
            if body.get("stream"):
                tally.first.append(answer.first)
        tally.tokens += answer.tokens


async def load(serving: Serving, texts: list[str], clients: int, seconds: float) -> Tally:
    asked = [(body, (await ask(serving.port, body)).text) for body in requests_of(texts)]
    tally, started = Tally(), time.perf_counter()
    end = started + seconds
    running = [asyncio.create_task(client(serving.port, n, asked, tally, end)) for n in range(clients)]
    before = Tally()
    while time.perf_counter() < end:
        await asyncio.sleep(min(10.0, max(0.1, end - time.perf_counter())))
        recent = tally.first[len(before.first) :] or [float("nan")]
        rate = (tally.tokens - before.tokens) / 10
        print(
            f"{time.perf_counter() - started:4.0f} s  {tally.right:6,} right  {len(tally.wrong)} wrong  "
            f"{len(tally.lost)} lost  {tally.refused:5,} refused  {tally.left:3,} left  {rate:5.0f} a second "
            f"first token {statistics.median(recent):.2f} s  {serving.megabytes():.0f} MB",
            flush=True,
        )
        before = Tally(first=list(tally.first), tokens=tally.tokens)
    await asyncio.gather(*running)
    return tally


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--name", default="retro")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = options.work or make_work(Path(folder)).path
        text = Workspace(work).store("train")
        tokenizer = Workspace(work).datastore().tokenizer
        texts = [tokenizer.decode(text.document(number).tolist()) for number in range(24)]
        serving = Serving(work, options.name, "--max-waiting", str(options.clients))
        try:
            print(f"ready after {serving.ready:.1f} s; {options.clients} clients for {options.seconds:.0f} s")
            tally = asyncio.run(load(serving, texts, options.clients, options.seconds))
        finally:
            status = serving.stop()
        counts = f"{tally.right:,} right, {len(tally.wrong)} wrong, {len(tally.lost)} lost"
        print(f"{counts}; the server ended with {status}")
        for line in [*tally.wrong[:3], *tally.lost[:3]]:
            print(f"  {line[:200]}")
        sys.exit(bool(tally.wrong or tally.lost))


if __name__ == "__main__":
    main()
