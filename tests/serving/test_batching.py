"""Answers under load are what they would be alone."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import httpx
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from retro.config.fit import FitConfig
from retro.fitting.fitted import FittedModel
from retro.generation.batch import RunningBatch
from retro.generation.request import Choice, Prompt, Request, Retrieval
from retro.generation.sampler import Sampler
from retro.model.protocol import LanguageModel
from retro.model.retro import Retro
from retro.serving.engine import Engine
from retro.serving.jobs import BusyError, Drew, Ended, Event, Job
from retro.workspace import Workspace
from tests.serving.conftest import random_model
from tests.serving.live import Live, live, served


def fitted_llama(work: Workspace) -> FittedModel:
    """A tiny Llama with the workspace's own vocabulary, that reads neighbours beside the text."""
    torch.manual_seed(0)
    tokenizer = work.datastore().tokenizer
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    base = LlamaForCausalLM(config).eval().double()
    return FittedModel(base, FitConfig(chunk_len=8), tokenizer.pad_id, tokenizer.end_id).eval()


@pytest.fixture(scope="module", params=["float64", "float32", "fitted"])
def busy(
    request: pytest.FixtureRequest, small_work: Workspace, static_encoder: str, small_model: Retro
) -> Iterator[Live]:
    models: dict[str, Any] = {
        "float64": lambda: small_model,
        "float32": lambda: random_model(static_encoder, torch.float32),
        "fitted": lambda: fitted_llama(small_work),
    }
    with live(served(small_work, models[request.param]()), max_sequences=6) as running:
        yield running


def requests_of(texts: list[str]) -> list[dict[str, Any]]:
    """Short and long, greedy and drawn, with and without retrieval, penalties and stops."""
    plain: list[dict[str, Any]] = [
        {"temperature": 0},
        {"seed": 3, "temperature": 1.2},
        {"seed": 4, "top_p": 0.8, "retro": {"num_neighbours": 1}},
        {"seed": 5, "top_k": 7, "retro": {"retrieval": False}},
        {"temperature": 0, "frequency_penalty": 1.5, "presence_penalty": 0.5},
        {"seed": 6, "repetition_penalty": 1.3, "retro": {"every": 2}},
        {"seed": 7, "n": 2, "retro": {"num_neighbours": 3}},
        {"temperature": 0, "retro": {"passages": ["Anyone may copy this."]}},
    ]
    return [
        {
            "prompt": texts[number][: 12 + 17 * number],
            "max_tokens": 10 + 5 * (number % 4),
            **plain[number % len(plain)],
        }
        for number in range(16)
    ]


def expected(sampler: Sampler, asked: dict[str, Any]) -> list[str]:
    """The same by the library, one request at a time."""
    options = dict(asked.get("retro", {}))
    on = options.pop("retrieval", True)
    if "passages" in options:
        options["passages"] = tuple(options["passages"])
    names = ("top_p", "top_k", "repetition_penalty", "frequency_penalty", "presence_penalty")
    request = Request(
        prompts=[Prompt(sampler.tokenizer.encode(asked["prompt"]))],
        max_tokens=asked["max_tokens"],
        choice=Choice(
            temperature=float(asked.get("temperature", 1.0)),
            **{name: asked[name] for name in names if name in asked},
        ),
        retrieval=Retrieval(**options) if on else False,
        seed=asked.get("seed", 0),
        samples=asked.get("n", 1),
    )
    return [sample.text for sample in sampler.generate_all(request)[0]]


def test_every_answer_is_what_it_would_be_alone(busy: Live, texts: list[str]) -> None:
    asked = requests_of(texts)
    alone = [expected(busy.server.served.sampler, one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda one: busy.complete(**one), asked))
    assert [[choice["text"] for choice in answer["choices"]] for answer in found] == alone
    # They did meet: fewer steps than tokens.
    counts = busy.server.engine.counts
    assert counts.turns < 0.7 * counts.tokens


def test_a_stream_is_the_same_answer(busy: Live, texts: list[str]) -> None:
    asked = requests_of(texts)[1]
    whole = busy.text(**asked)
    with busy.client.stream("POST", "/v1/completions", json={**asked, "stream": True}) as answer:
        lines = [line for line in answer.iter_lines() if line.startswith("data: {")]
    records = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert "".join(choice["text"] for record in records for choice in record["choices"]) == whole


class Told:
    """Collects what an engine tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.ended = threading.Event()

    def __call__(self, events: list[Event]) -> None:
        self.events += events
        if any(isinstance(event, Ended) for event in events):
            self.ended.set()

    @property
    def error(self) -> Exception | None:
        return next(event.error for event in self.events if isinstance(event, Ended))


def job(sampler: Sampler, prompt: str, told: Told, max_tokens: int = 30, **more: Any) -> Job:
    request = Request(prompts=[prompt], max_tokens=max_tokens, choice=Choice(min_tokens=max_tokens))
    return Job(sampler.begin(request), told, **more)


@pytest.fixture
def sampler(small_work: Workspace, small_model: Retro) -> Sampler:
    return served(small_work, small_model).sampler


def test_several_chunks_that_end_together_are_one_search(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []
    memory = sampler.retriever
    assert memory is not None
    search = memory.search
    monkeypatch.setattr(
        memory, "search", lambda chunks, *rest: (searched.append(len(chunks)), search(chunks, *rest))[1]
    )
    engine = Engine(sampler.model)
    told = [Told() for _ in range(4)]
    for one in told:
        engine.submit(job(sampler, "The licence permits", one, 20))
    engine.start()
    for one in told:
        assert one.ended.wait(30)
    engine.stop()
    assert searched
    assert set(searched) == {4}


def test_requests_that_come_together_are_read_together(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("retro.serving.engine.COMPANY", 60.0)
    joined: list[int] = []
    join = RunningBatch.join
    monkeypatch.setattr(
        RunningBatch, "join", lambda self, groups: (joined.append(len(groups)), join(self, groups))[1]
    )
    engine, first, second, third = Engine(sampler.model).start(), Told(), Told(), Told()
    with engine.coming():
        engine.submit(job(sampler, "The licence", first))
        assert not first.ended.wait(0.2)
        assert engine.counts.turns == 0
        engine.submit(job(sampler, "Share this", second))
    assert first.ended.wait(30)
    assert second.ended.wait(30)
    # With nobody on the way nobody waits.
    engine.submit(job(sampler, "The licence", third))
    assert third.ended.wait(30)
    engine.stop()
    assert joined == [2, 1]


def test_nobody_waits_long_for_company_and_those_under_way_not_at_all(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, first, second, third = Engine(sampler.model).start(), Told(), Told(), Told()
    with engine.coming():
        engine.submit(job(sampler, "The licence", first))
        assert first.ended.wait(30)
    monkeypatch.setattr("retro.serving.engine.COMPANY", 60.0)
    engine.submit(job(sampler, "The licence", second, 200))
    while not second.events:
        time.sleep(0.001)
    with engine.coming():
        engine.submit(job(sampler, "Share this", third))
        assert second.ended.wait(30)
        assert not third.events
        with pytest.raises(KeyError), engine.coming():
            raise KeyError("a request that was not understood comes no more")
    assert third.ended.wait(30)
    engine.stop()
    assert [one.error for one in (first, second, third)] == [None] * 3


def test_a_cancelled_request_leaves_and_the_others_go_on(sampler: Sampler) -> None:
    engine, first, second = Engine(sampler.model), Told(), Told()
    cancelled = job(sampler, "The licence", first, 200)
    engine.submit(cancelled)
    engine.submit(job(sampler, "Share this", second, 40))
    engine.start()
    while not any(isinstance(event, Drew) for event in first.events):
        time.sleep(0.001)
    engine.cancel(cancelled)
    assert second.ended.wait(30)
    assert second.error is None
    engine.stop()
    assert engine.counts.cancelled == 1
    drawn = [event for event in first.events if isinstance(event, Drew)]
    assert len(drawn) < 200
    assert not first.ended.is_set()


def test_a_full_queue_says_when_to_come_back(sampler: Sampler) -> None:
    engine = Engine(sampler.model, max_sequences=1, max_waiting=2)
    for _ in range(2):
        engine.submit(job(sampler, "The licence", Told()))
    with pytest.raises(BusyError, match="try again in 3 s"):
        engine.submit(job(sampler, "The licence", Told()))


def test_what_takes_too_long_is_ended(sampler: Sampler) -> None:
    engine, told = Engine(sampler.model).start(), Told()
    engine.submit(job(sampler, "The licence", told, 2000, seconds=0.05))
    assert told.ended.wait(30)
    assert "longer than 0.05 s" in str(told.error)
    assert engine.running == 0
    engine.stop()


def forever() -> Iterator[None]:
    """A piece of scoring with passes of 20 ms that never ends."""
    while True:
        time.sleep(0.02)
        yield


def test_scoring_that_takes_too_long_is_ended(sampler: Sampler) -> None:
    engine, told = Engine(sampler.model), Told()
    engine.start()
    engine.submit(Job([], told, before={"forever": forever}, seconds=0.1))
    assert told.ended.wait(30)
    assert "longer than 0.1 s" in str(told.error)
    engine.stop()


def test_scoring_takes_no_more_time_than_writing(sampler: Sampler) -> None:
    engine, scored, written = Engine(sampler.model), Told(), Told()
    engine.submit(Job([], scored, before={"forever": forever}))
    engine.submit(job(sampler, "The licence", written, 200))
    started = time.monotonic()
    engine.start()
    assert written.ended.wait(60)
    took = time.monotonic() - started
    assert 1 <= engine.counts.passes <= (0.6 * took + 0.1) / 0.02
    engine.stop()


def test_stopping_finishes_what_is_under_way_and_takes_nothing_new(sampler: Sampler) -> None:
    engine, told = Engine(sampler.model).start(), Told()
    engine.submit(job(sampler, "The licence", told, 60))
    engine.stop(grace=30)
    assert told.ended.is_set()
    assert told.error is None
    with pytest.raises(Exception, match="stopping"):
        engine.submit(job(sampler, "The licence", Told()))


def test_stopping_has_a_limit(sampler: Sampler) -> None:
    engine, told = Engine(sampler.model).start(), Told()
    engine.submit(job(sampler, "The licence", told, 100_000))
    started = time.monotonic()
    engine.stop(grace=0.2)
    assert time.monotonic() - started < 10
    assert "stopping" in str(told.error)


def test_a_fault_of_the_model_fails_those_under_way_and_not_the_server(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, first, second = Engine(sampler.model), Told(), Told()
    step = engine._batch.feed
    monkeypatch.setattr(engine._batch, "feed", lambda: (_ for _ in ()).throw(RuntimeError("broken")))
    assert step is not None
    engine.submit(job(sampler, "The licence", first))
    engine.start()
    assert first.ended.wait(30)
    assert "broken" in str(first.error)
    # The batch was made anew, so the next one is whole.
    engine.submit(job(sampler, "The licence", second))
    assert second.ended.wait(30)
    assert second.error is None
    engine.stop()
    assert "has met a fault" in caplog.text


def test_a_model_that_bears_no_company_is_served_one_by_one(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retro.errors import ConfigError
    from retro.model.decoding import RetroDecoding

    def refuse(self: RetroDecoding, other: Any) -> None:
        raise ConfigError("no company")

    monkeypatch.setattr(RetroDecoding, "join", refuse)
    engine, told = Engine(sampler.model), [Told() for _ in range(3)]
    engine.start()
    for one in told:
        engine.submit(job(sampler, "The licence", one, 12))
        time.sleep(0.005)
    for one in told:
        assert one.ended.wait(30)
        assert one.error is None
    engine.stop()


def test_a_reader_that_does_not_read_holds_nobody(small_work: Workspace, small_model: LanguageModel) -> None:
    """Its answer waits for it; after a while its connection is cut."""
    with live(served(small_work, small_model), send_buffer=1 << 16, idle_seconds=0.5) as running:
        host, port = running.url.removeprefix("http://").split(":")
        asked = {"prompt": "The licence", "max_tokens": 400, "min_tokens": 400, "stream": True, "n": 8}
        body = json.dumps({**asked, "logprobs": 20}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((host, int(port)))
        slow.sendall(head.encode() + body)
        time.sleep(0.2)
        started = time.monotonic()
        assert running.text("Share this", max_tokens=16, temperature=0)
        assert time.monotonic() - started < 5
        deadline = time.monotonic() + 60
        while running.server.engine.running and time.monotonic() < deadline:
            time.sleep(0.05)
        assert running.server.engine.running == 0
        # That of the other client ends by itself when it has been idle.
        connections = running.process.server_state.connections
        while connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not connections
        found = b""
        with suppress(ConnectionResetError):
            while part := slow.recv(1 << 16):
                found += part
        assert b"[DONE]" not in found
        slow.close()


def test_a_client_that_leaves_frees_its_place(server: Live) -> None:
    before = server.server.engine.counts.cancelled
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        body = {"prompt": "The licence", "max_tokens": 1000, "min_tokens": 1000, "stream": True}
        with client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
    deadline = time.monotonic() + 20
    while server.server.engine.counts.cancelled == before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.server.engine.counts.cancelled == before + 1
    assert server.server.engine.running == 0
