"""What an answer says about its sources: where they stand, what they share with it, what they were worth."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from retro.generation.sequence import Sample
from retro.model.retro import Retro
from retro.retrieval.retriever import stack_neighbours
from retro.retrieval.search import Neighbour, Place
from retro.serving.citations import Citer, annotations, sources
from retro.serving.explaining import Explanation, explain, parts_of
from retro.workspace import Workspace
from tests.serving.live import Live

EXPLAIN: dict[str, Any] = {"temperature": 0, "max_tokens": 21, "retro": {"explain": True}}


def finished(generator: Any) -> Any:
    """What a piece of scoring returns."""
    try:
        while True:
            next(generator)
    except StopIteration as done:
        return done.value


@pytest.fixture
def sample(server: Live, texts: list[str]) -> Sample:
    return server.server.served.sampler.generate(texts[0][:80], max_tokens=21)


def score(model: Retro, sample: Sample, neighbours: list[list[Neighbour]] | None) -> np.ndarray:
    """Bits of the answer's tokens by a full forward over everything: slow, and sure."""
    inputs = [torch.tensor([sample.tokens])]
    if neighbours is not None and any(neighbours):
        rows = [neighbours[u] if u < len(neighbours) else [] for u in range(len(sample.tokens) // 8)]
        inputs += [torch.from_numpy(array)[None] for array in stack_neighbours(rows, 16, 0)]
    with torch.no_grad():
        log_probs = model(*inputs)[0].log_softmax(-1)
    places = range(sample.prompt_len - 1, len(sample.tokens) - 1)
    return np.array([-float(log_probs[p, sample.tokens[p + 1]]) / math.log(2) for p in places])


def test_bits_are_those_of_leaving_a_neighbour_out(small_model: Retro, sample: Sample) -> None:
    found = finished(explain(small_model, sample, neighbours=True))
    on, off = score(small_model, sample, sample.neighbours), score(small_model, sample, None)
    assert found.saved == pytest.approx((off - on).tolist(), abs=1e-9)
    parts = parts_of(sample)
    assert len(parts) >= 3
    for part in parts:
        own = part.of_answer(sample.prompt_len)
        for rank in range(len(sample.neighbours[part.chunk])):
            without = [list(row) for row in sample.neighbours]
            del without[part.chunk][rank]
            expected = (score(small_model, sample, without) - on)[own].sum()
            assert found.by_neighbour[part.chunk, rank] == pytest.approx(expected, abs=1e-9)
    assert found.passes == 2 + 1 + len(found.by_neighbour)
    masses = [sum(found.attention[part.chunk, rank] for rank in range(2)) for part in parts]
    assert masses == pytest.approx([1.0] * len(parts))


def test_what_a_neighbour_saved_is_told_token_by_token(small_model: Retro, sample: Sample) -> None:
    found = finished(explain(small_model, sample, neighbours=True))
    on = score(small_model, sample, sample.neighbours)
    assert found.by_token.keys() == found.by_neighbour.keys()
    for part in parts_of(sample):
        for rank in range(len(sample.neighbours[part.chunk])):
            without = [list(row) for row in sample.neighbours]
            del without[part.chunk][rank]
            expected = (score(small_model, sample, without) - on)[part.of_answer(sample.prompt_len)]
            assert found.by_token[part.chunk, rank] == pytest.approx(expected.tolist(), abs=1e-9)
    differ = [max(row) - min(row) for row in found.by_token.values() if len(row) > 1]
    assert min(differ) > 1e-3


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_tells_each_neighbour_s_bits_on_each_token(
    server: Live, texts: list[str], stream: bool
) -> None:
    body = {"prompt": texts[0][:80], "stream": stream, **EXPLAIN}
    told = server.client.post("/v1/completions", json=body).text
    last = told.split("data: ")[-2] if stream else told
    chunks = json.loads(last)["choices"][0]["retro"]["chunks"]
    assert len(chunks) >= 3
    for chunk in chunks:
        for neighbour in chunk["neighbours"]:
            assert len(neighbour["saved"]) == chunk["end_token"] - chunk["first_token"]
            assert sum(neighbour["saved"]) == pytest.approx(neighbour["bits"], abs=1e-9)


def test_parts_cover_the_answer_from_its_first_complete_chunk_on(sample: Sample) -> None:
    covered = [place for part in parts_of(sample) for place in range(part.start, part.stop)]
    assert covered == list(range(sample.prompt_len, len(sample.tokens)))
    for part in parts_of(sample):
        assert all(place // 8 == part.chunk + 1 for place in range(part.start, part.stop))


def test_an_answer_tells_all_of_it(server: Live, texts: list[str]) -> None:
    answer = server.complete(texts[0][:80], **EXPLAIN)
    choice = answer["choices"][0]
    text, retro = choice["text"], choice["retro"]
    assert retro["retrieval"]
    assert retro["version"] == 1
    assert [chunk["start"] for chunk in retro["chunks"]] == sorted(
        chunk["start"] for chunk in retro["chunks"]
    )
    assert retro["chunks"][-1]["end"] == len(text)
    assert "".join(text[token["start"] : token["end"]] for token in retro["tokens"]) == text
    total = sum(token["saved"] for token in retro["tokens"])
    assert retro["bits"] == pytest.approx(total)
    assert sum(chunk["bits"] for chunk in retro["chunks"]) == pytest.approx(total)
    assert retro["explained"]["passes"] >= 5
    assert retro["explained"]["seconds"] > 0
    for chunk in retro["chunks"]:
        for neighbour in chunk["neighbours"]:
            assert neighbour["bits"] is not None
            assert 0 < neighbour["attention"] < 1
            for run in neighbour["runs"]:
                assert text[run["start"] : run["end"]] == run["text"]
                inside = neighbour["text"][run["neighbour_start"] : run["neighbour_end"]]
                assert inside.endswith(run["text"]) or run["text"].endswith(inside)
    # Every citation leads to its document, at the place where the neighbour stands.
    cited = choice["annotations"][0]["url_citation"]
    first = retro["chunks"][0]["neighbours"][0]
    assert cited["url"] == first["url"]
    found = server.client.get(cited["url"]).json()
    marked = found["text"][found["marked_start"] : found["marked_end"]]
    assert first["text"].startswith(marked)
    assert found["document"] == first["document"]
    assert {source["source"]["id"] for source in answer["sources"]} == {
        neighbour["document"] for chunk in retro["chunks"] for neighbour in chunk["neighbours"]
    }


def test_worth_alone_is_cheaper(server: Live, texts: list[str]) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 21}
    worth = server.complete(texts[0][:80], retro={"worth": True}, **asked)["choices"][0]["retro"]
    whole = server.complete(texts[0][:80], retro={"explain": True}, **asked)["choices"][0]["retro"]
    assert worth["explained"]["passes"] == 2
    saved = [[token["saved"] for token in found["tokens"]] for found in (worth, whole)]
    assert saved[0] == pytest.approx(saved[1], abs=1e-9)
    assert worth["chunks"][0]["neighbours"][0]["bits"] is None
    assert worth["chunks"][0]["neighbours"][0]["saved"] is None


def test_without_retrieval_nothing_is_cited(server: Live, texts: list[str]) -> None:
    off = {"retrieval": False, "worth": True}
    answer = server.complete(texts[0][:80], temperature=0, max_tokens=9, retro=off)
    retro = answer["choices"][0]["retro"]
    assert (retro["retrieval"], retro["chunks"], retro["bits"], answer["sources"]) == (False, [], 0.0, [])
    assert answer["choices"][0]["annotations"] == []


def test_a_short_text_says_why_nothing_was_retrieved(server: Live) -> None:
    retro = server.complete("The", max_tokens=1, temperature=0)["choices"][0]["retro"]
    assert "nothing was retrieved" in retro["notes"][0]


def test_given_passages_are_cited_without_a_link(server: Live, texts: list[str]) -> None:
    given = {"passages": ["Anyone may copy this."], "explain": True}
    answer = server.complete(texts[0][:80], temperature=0, max_tokens=12, retro=given)
    retro = answer["choices"][0]["retro"]
    neighbour = retro["chunks"][0]["neighbours"][0]
    assert (neighbour["document"], neighbour["url"], neighbour["source"]) == ("", "", "given")
    assert neighbour["bits"] is not None
    assert answer["choices"][0]["annotations"] == []
    assert retro["warnings"] == []


def test_an_excluded_document_is_not_read(server: Live, texts: list[str]) -> None:
    asked: dict[str, Any] = {"temperature": 0, "max_tokens": 12}
    chunks = server.complete(texts[0][:80], **asked)["choices"][0]["retro"]["chunks"]
    documents = {neighbour["document"] for chunk in chunks for neighbour in chunk["neighbours"]}
    for name in ("document", "id"):
        gone = chunks[0]["neighbours"][0][name]
        other = server.complete(texts[0][:80], retro={"exclude": [gone, "unknown"]}, **asked)
        found = other["choices"][0]["retro"]
        read = [neighbour[name] for chunk in found["chunks"] for neighbour in chunk["neighbours"]]
        assert gone not in read
        assert "not in the datastore" in found["notes"][0]
    assert documents


def test_a_stream_tells_sources_as_they_are_known_and_all_at_its_end(server: Live, texts: list[str]) -> None:
    whole = server.complete(texts[0][:80], **EXPLAIN)
    body = {"prompt": texts[0][:80], "stream": True, **EXPLAIN}
    with server.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    records = [json.loads(line) for line in lines[:-1]]
    text, begun = "", []
    for record in records[:-1]:
        choice = record["choices"][0]
        text += choice["text"]
        if "retro_chunk" in choice:
            assert choice["retro_chunk"]["start"] == len(text)
            begun.append(choice["retro_chunk"])
    last = records[-1]
    expected = whole["choices"][0]
    retro = last["choices"][0]["retro"]
    assert [chunk["number"] for chunk in begun] == [chunk["number"] for chunk in retro["chunks"]]
    assert [chunk["start"] for chunk in begun] == [chunk["start"] for chunk in retro["chunks"]]
    for chunk, final in zip(begun, retro["chunks"], strict=True):
        told = [(neighbour["document"], neighbour["text"]) for neighbour in chunk["neighbours"]]
        assert told == [(neighbour["document"], neighbour["text"]) for neighbour in final["neighbours"]]
    assert retro["tokens"] == expected["retro"]["tokens"]
    assert last["choices"][0]["annotations"] == expected["annotations"]
    assert last["sources"] == whole["sources"]


class TestCiter:
    """Runs and warnings on texts where they can be counted by hand."""

    @pytest.fixture
    def citer(self, small_work: Workspace) -> Citer:
        return Citer(small_work.datastore().tokenizer, "http://here", copied_tokens=4)

    def cite(self, citer: Citer, answer: str, source: str) -> Any:
        tokenizer = citer.tokenizer
        prompt = tokenizer.encode("The licence permits anyone")[:8]
        tokens = [*prompt, *tokenizer.encode(answer)[:8]]
        retrieved = np.zeros(16, dtype=np.int64)
        spelled = tokenizer.encode(source)[:16]
        retrieved[: len(spelled)] = spelled
        text = tokenizer.decode(spelled)
        found = Neighbour(3, 0.5, retrieved, text, "a.txt", "A", "licences", Place(0, 1, 0, 8), "f" * 32)
        sample = Sample(tokens, 8, 8, [[found]], text=tokenizer.decode(tokens[8:]), retrieval=True)
        return citer.chunks(sample, {3}), sample

    def test_a_long_run_is_found_and_warned_of_with_its_licence(self, citer: Citer) -> None:
        text = "share this software without warranty"
        chunks, sample = self.cite(citer, text, "You may " + text)
        runs = chunks[0].neighbours[0].runs
        longest = max(runs, key=lambda run: run.tokens)
        assert longest.tokens > 4
        warning = citer.warnings(chunks)[0]
        assert warning.tokens == longest.tokens
        assert "CC-BY-4.0" in warning.licence
        assert "word for word in 'A' (licences)" in warning.message
        assert sample.text[warning.start : warning.end] == longest.text

    def test_what_was_deleted_is_not_shown(self, citer: Citer) -> None:
        chunks, sample = self.cite(citer, "share this software", "share this software")
        assert chunks[0].neighbours[0].text
        hidden = citer.chunks(sample, set())
        neighbour = hidden[0].neighbours[0]
        assert neighbour.deleted
        assert (neighbour.text, neighbour.title, neighbour.id, neighbour.url, neighbour.runs) == (
            "",
            "",
            "",
            "",
            [],
        )
        assert annotations(hidden) == []
        assert sources([hidden]) == []

    def test_where_a_deleted_one_helped_is_not_shown(self, citer: Citer) -> None:
        _, sample = self.cite(citer, "share this software", "share this software")
        on_tokens = [1.0] * (len(sample.tokens) - sample.prompt_len)
        explained = Explanation(on_tokens, {(0, 0): sum(on_tokens)}, {(0, 0): on_tokens})
        assert citer.chunks(sample, {3}, explained)[0].neighbours[0].saved == on_tokens
        assert citer.chunks(sample, set(), explained)[0].neighbours[0].saved is None
