"""`/v1/completions` and its neighbours, field by field."""

import json
import math
import time
from typing import Any

import pytest
import torch

from retro.model.retro import Retro
from retro.retrieval.retriever import stack_neighbours
from retro.workspace import Workspace
from tests.serving.live import Live, live, served

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


def refused(server: Live, **body: Any) -> dict[str, Any]:
    answer = server.client.post("/v1/completions", json={"prompt": "The licence", **body})
    assert answer.status_code == 400, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error


def test_text_and_tokens_are_the_same_prompt(server: Live, texts: list[str]) -> None:
    tokens = server.server.served.tokenizer.encode(texts[0][:60])
    assert server.text(texts[0][:60], **GREEDY) == server.text(tokens, **GREEDY)


def test_several_prompts_and_several_samples_are_numbered_in_order(server: Live) -> None:
    prompts = ["The licence", "Share this software"]
    answer = server.complete(prompts, n=3, seed=1, max_tokens=5)
    assert [choice["index"] for choice in answer["choices"]] == list(range(6))
    alone = [server.complete(prompt, n=3, seed=1, max_tokens=5)["choices"] for prompt in prompts]
    texts = [choice["text"] for choices in alone for choice in choices]
    assert [choice["text"] for choice in answer["choices"]] == texts
    tokenizer = server.server.served.tokenizer
    read = sum(len(tokenizer.encode(prompt)) for prompt in prompts)
    written = answer["usage"]["completion_tokens"]
    assert 6 <= written <= 30
    assert answer["usage"] == {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def test_a_prompt_of_numbers_in_quotes_is_text(server: Live) -> None:
    assert server.text(["12"], **GREEDY) == server.text("12", **GREEDY)


def test_a_seed_repeats_and_none_does_not(server: Live) -> None:
    asked: dict[str, Any] = {"prompt": "The licence", "max_tokens": 24, "temperature": 1.5}
    assert server.text(seed=5, **asked) == server.text(seed=5, **asked)
    assert len({server.text(**asked) for _ in range(3)}) > 1


def test_a_stop_text_ends_an_answer_before_it(server: Live) -> None:
    whole = server.text("The licence permits", temperature=1.5, seed=2, max_tokens=40, min_tokens=40)
    stop = whole[10:13]
    answer = server.complete("The licence permits", temperature=1.5, seed=2, max_tokens=40, stop=[stop])
    choice = answer["choices"][0]
    if "stop" == choice["finish_reason"]:
        assert choice["text"] == whole[: whole.index(stop)][: len(choice["text"])]
    assert stop not in choice["text"]


def test_log_probabilities_are_those_of_the_model(server: Live, small_model: Retro) -> None:
    tokenizer = server.server.served.tokenizer
    answer = server.complete("The licence permits anyone", logprobs=2, echo=True, max_tokens=9, seed=1)
    choice = answer["choices"][0]
    found = choice["logprobs"]
    tokens = tokenizer.encode("The licence permits anyone")
    assert choice["text"].startswith("The licence permits anyone")
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    assert len(found["tokens"]) == len(tokens) + answer["usage"]["completion_tokens"]
    # The prompt's, by a full forward with the neighbours of its complete chunks.
    memory = server.server.served.memory
    assert memory is not None
    m = memory.chunk_len
    chunks = [torch.tensor(tokens[start : start + m]).numpy() for start in range(0, len(tokens) - m + 1, m)]
    neighbours = memory.search(chunks, 2)
    values, mask = stack_neighbours(neighbours, 2 * m, tokenizer.pad_id)
    with torch.no_grad():
        logits = small_model(
            torch.tensor([tokens]), torch.from_numpy(values)[None], torch.from_numpy(mask)[None]
        )
    log_probs = logits[0].log_softmax(-1)
    for place, token in enumerate(tokens[1:], start=1):
        assert found["token_logprobs"][place] == pytest.approx(float(log_probs[place - 1, token]), abs=1e-9)
        best = max(found["top_logprobs"][place].values())
        assert best == pytest.approx(float(log_probs[place - 1].max()), abs=1e-9)
        assert len(found["top_logprobs"][place]) <= 2
    # Offsets lead to the tokens in the text.
    for token, start in zip(found["tokens"], found["text_offset"], strict=True):
        if token.isascii() and token:
            assert choice["text"][start:].startswith(token)


def test_echo_alone_scores_without_writing(server: Live) -> None:
    with_one = server.complete("The licence permits anyone", logprobs=1, echo=True, max_tokens=1)
    nothing = server.complete("The licence permits anyone", logprobs=1, echo=True, max_tokens=0)
    assert nothing["choices"][0]["text"] == "The licence permits anyone"
    assert nothing["usage"]["completion_tokens"] == 0
    long, short = (answer["choices"][0]["logprobs"]["token_logprobs"] for answer in (with_one, nothing))
    assert short[1:] == pytest.approx(long[1 : len(short)], abs=1e-9)
    assert server.complete("The licence", echo=True, max_tokens=2)["choices"][0]["text"].startswith(
        "The licence"
    )


def test_retrieval_off_is_another_score(server: Live) -> None:
    asked: dict[str, Any] = {"logprobs": 0, "echo": True, "max_tokens": 0}
    prompt = "The licence permits anyone to use and copy this software"
    on = server.complete(prompt, **asked)["choices"][0]["logprobs"]["token_logprobs"]
    off = server.complete(prompt, retro={"retrieval": False}, **asked)
    off = off["choices"][0]["logprobs"]["token_logprobs"]
    m = server.server.served.sampler.model.facts.chunk_len
    assert on[1:m] == pytest.approx(off[1:m], abs=1e-9)
    assert on[m:] != pytest.approx(off[m:], abs=1e-3)


def test_penalties_are_openais(server: Live) -> None:
    """A presence penalty as large as can be lets no token come twice while others are nearly as likely."""
    plain = server.complete("The", temperature=0, max_tokens=30, min_tokens=30, logprobs=0)
    tokens = plain["choices"][0]["logprobs"]["tokens"]
    assert len(set(tokens)) < len(tokens)
    other = server.complete(
        "The",
        temperature=0,
        max_tokens=30,
        min_tokens=30,
        logprobs=0,
        frequency_penalty=2,
        presence_penalty=2,
    )
    told = other["choices"][0]["logprobs"]["tokens"]
    assert len(set(told)) > len(set(tokens))


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"n": 100}, "n"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, None),
        ({"stop": ["x"] * 100}, "stop"),
        ({"stop": "x" * 1000}, "stop"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [99_999]}, "prompt"),
        ({"prompt": ["a"] * 100}, "prompt"),
        ({"prompt": "word " * 50_000}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"min_tokens": 50, "max_tokens": 5}, None),
        ({"strange": 1}, "strange"),
        ({"retro": {"strange": 1}}, "retro.strange"),
        ({"retro": {"sources": ["nowhere"]}}, "retro.sources"),
        ({"retro": {"passages": ["a"], "exclude": ["b"]}}, "retro.passages"),
        ({"retro": {"retrieval": False, "every": 2}}, "retro"),
        ({"retro": {"passages": [" "]}}, None),
    ],
)
def test_what_is_not_offered_is_refused_by_name(
    server: Live, body: dict[str, Any], param: str | None
) -> None:
    answer = server.client.post(
        "/v1/completions",
        content=json.dumps({"prompt": "The licence", **body}),
        headers={"Content-Type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


def test_another_model_is_not_found(server: Live) -> None:
    answer = server.client.post("/v1/completions", json={"model": "gpt-5", "prompt": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert server.text("a", model="small", **GREEDY) == server.text("a", **GREEDY)
    assert server.client.get("/v1/models/small").json()["id"] == "small"
    assert server.client.get("/v1/models/other").status_code == 404


def test_a_conversation_needs_a_template(server: Live) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    answer = server.client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "no_chat_template"


def test_a_stream_tells_log_probabilities_and_usage(server: Live) -> None:
    body = {
        "prompt": "The licence permits",
        "max_tokens": 10,
        "seed": 3,
        "logprobs": 1,
        "echo": True,
        "n": 2,
    }
    whole = server.complete(**body)
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with server.client.stream("POST", "/v1/completions", json=streamed) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    records = [json.loads(line) for line in lines[:-1]]
    assert records[-1]["choices"] == []
    assert records[-1]["usage"] == whole["usage"]
    for index, choice in enumerate(whole["choices"]):
        parts = [part for record in records for part in record["choices"] if part["index"] == index]
        assert "".join(part["text"] for part in parts) == choice["text"]
        told = [number for part in parts if part["logprobs"] for number in part["logprobs"]["token_logprobs"]]
        assert told[1:] == pytest.approx(choice["logprobs"]["token_logprobs"][1:], abs=1e-9)
        assert parts[-1]["finish_reason"] == choice["finish_reason"]


def test_the_lines_of_a_stream_are_the_json_of_like_records(
    small_work: Workspace, small_model: Retro
) -> None:
    # A name that might be taken for a token's text.
    name = "…"
    asked = {"prompt": "The licence permits", "max_tokens": 60, "n": 2, "seed": 1, "temperature": 1.5}
    with live(served(small_work, small_model, name)) as running:
        texts = [choice["text"] for choice in running.complete(**asked)["choices"]]
        told = running.client.post("/v1/completions", json={**asked, "stream": True}).content.decode()
    lines = told.removesuffix("\n\n").split("\n\n")
    records = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    assert lines[:-1] == [f"data: {json.dumps(record, ensure_ascii=False)}" for record in records]
    tokens = [record for record in records if "sources" not in record]
    assert len(tokens) > 100
    assert {record["model"] for record in tokens} == {name}
    assert {(*record, *record["choices"][0]) for record in tokens if len(record["choices"][0]) == 4} == {
        ("id", "object", "created", "model", "choices", "index", "text", "finish_reason", "logprobs")
    }
    choices = [choice for record in tokens for choice in record["choices"]]
    for index, text in enumerate(texts):
        assert "".join(choice["text"] for choice in choices if choice["index"] == index) == text


def test_numbers_of_the_metrics_grow(server: Live) -> None:
    def tokens() -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("retro_tokens_total")))

    before = tokens()
    server.text("The licence", max_tokens=7, min_tokens=7)
    assert tokens() == before + 7
    assert 'retro_responses_total{route="/v1/completions",status="200"}' in server.client.get("/metrics").text
    assert not math.isnan(before)


def test_an_answer_does_not_wait_for_full_packets(server: Live) -> None:
    """The kernel would hold the second small write back until the first is acknowledged: 40 ms."""
    took = []
    for _ in range(20):
        started = time.perf_counter()
        server.client.get("/health")
        took.append(time.perf_counter() - started)
    assert min(took) < 0.02


def test_tokens_go_there_and_back(server: Live) -> None:
    text = "The licence\tpermits ☕"
    found = server.client.post("/tokenize", json={"prompt": text}).json()
    assert found["count"] == len(found["tokens"])
    assert server.client.post("/detokenize", json={"tokens": found["tokens"]}).json()["prompt"] == text
    assert server.client.post("/detokenize", json={"tokens": [999_999]}).status_code == 400
    half = server.client.post(
        "/tokenize", content=b'{"prompt": "\\ud800"}', headers={"Content-Type": "application/json"}
    )
    assert (half.status_code, half.json()["error"]["param"]) == (400, "prompt")
    end = server.client.get("/tokenizer_info").json()["eos_token"]
    tokens = server.client.post("/tokenize", json={"prompt": end}).json()["tokens"]
    assert tokens == [server.server.served.tokenizer.end_id]
