"""Real clients: what people have installed already."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

from retro.model.retro import Retro
from retro.workspace import Workspace
from tests.scoring.runs import workspace_with_run
from tests.serving.live import KEY, Live, live, served

ASKED: dict[str, Any] = {
    "model": "small",
    "prompt": "The licence permits anyone to use",
    "max_tokens": 20,
    "seed": 1,
}


@pytest.fixture(scope="module")
def client(server: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_openai_plain_and_streaming(client: openai.OpenAI) -> None:
    answer = client.completions.create(**ASKED, logprobs=2, extra_body={"retro": {"explain": True}})
    text = answer.choices[0].text
    assert answer.usage is not None
    assert answer.choices[0].logprobs is not None
    parts = list(client.completions.create(**ASKED, stream=True, stream_options={"include_usage": True}))
    assert "".join(part.choices[0].text for part in parts if part.choices) == text
    assert parts[-1].usage == answer.usage
    # What is ours comes through, too.
    assert answer.model_extra is not None
    assert answer.model_extra["sources"]
    found: dict[str, Any] = answer.choices[0].retro  # type: ignore[attr-defined]
    assert found["chunks"][0]["neighbours"][0]["bits"] is not None
    assert [model.id for model in client.models.list()] == ["small"]


def test_openai_many_at_once(server: Live) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            asked = [client.completions.create(**{**ASKED, "seed": seed % 3}) for seed in range(12)]
            return [answer.choices[0].text for answer in await asyncio.gather(*asked)]

    found = asyncio.run(ask())
    assert [found[number] for number in range(3)] * 4 == found


def test_openai_sees_errors_as_its_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(**ASKED, suffix="end")
    assert refused.value.param == "suffix"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(**{**ASKED, "model": "other"})


def test_openai_with_a_key(small_work: Workspace, small_model: Retro) -> None:
    settings: dict[str, Any] = {"host": "0.0.0.0", "hosts": ("here",)}
    with live(served(small_work, small_model), KEY, **settings) as running:
        url = running.url.replace("0.0.0.0", "127.0.0.1") + "/v1"
        with openai.OpenAI(base_url=url, api_key=KEY) as client:
            assert client.completions.create(**ASKED).choices[0].text
        client = openai.OpenAI(base_url=url, api_key="wrong", max_retries=0)
        with client, pytest.raises(openai.AuthenticationError):
            client.completions.create(**ASKED)


def test_a_full_queue_is_a_rate_limit(small_work: Workspace, small_model: Retro) -> None:
    with live(served(small_work, small_model), max_sequences=1, max_waiting=0) as running:
        client = openai.OpenAI(base_url=f"{running.url}/v1", api_key="none", max_retries=0)
        with client, pytest.raises(openai.RateLimitError) as refused:
            client.completions.create(**ASKED)
        assert refused.value.response.headers["retry-after"] == "1"
        assert refused.value.code == "queue_full"


def test_llm_from_the_terminal(server: Live, tmp_path: Path) -> None:
    """Simon Willison's `llm`, with the model file that it reads for servers like OpenAI's."""
    (tmp_path / "extra-openai-models.yaml").write_text(
        json.dumps(
            [
                {
                    "model_id": "retro",
                    "model_name": "small",
                    "api_base": f"{server.url}/v1",
                    "api_key_name": "none",
                    "completion": True,
                    "can_stream": True,
                }
            ]
        )
    )
    options = ["-o", "max_tokens", "12", "-o", "seed", "3", "--key", "none", "--no-log"]
    found = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "retro", "The licence permits", *options],
        capture_output=True,
        text=True,
        env={**os.environ, "LLM_USER_PATH": str(tmp_path)},
    )
    assert found.returncode == 0, found.stderr
    expected = server.text("The licence permits", max_tokens=12, seed=3)
    assert found.stdout.rstrip("\n") == expected.rstrip("\n")


@pytest.mark.filterwarnings("default")  # the harness's and its libraries' own
def test_lm_eval_agrees_with_our_own_score(
    tmp_path_factory: pytest.TempPathFactory,
    text_folder: Path,
    static_encoder: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`local-completions` over HTTP, and our plugin in the process: the same numbers, with and without k."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from retro.harness import RetroLM

    monkeypatch.setenv("OPENAI_API_KEY", "none")
    work = workspace_with_run(tmp_path_factory.mktemp("eval") / "work", text_folder, static_encoder)
    pairs = [
        ("The licence permits anyone to use and", " share this software"),
        ("Without any warranty of fitness or", " merit"),
        ("Copy", " this"),
    ]
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    own = RetroLM(work.path, "retro", k=2, window=64).loglikelihood(requests)
    with live(served(work, work.run("retro").model)) as running:
        client = LocalCompletionsAPI(
            base_url=f"{running.url}/v1/completions", model="small", tokenizer_backend="remote", max_length=64
        )
        found = client.loglikelihood(requests)
        rolling = client.loglikelihood_rolling(
            [Instance("loglikelihood_rolling", {}, (pairs[0][0] + pairs[0][1],), 0)]
        )
    for (log_prob, greedy), (expected, expected_greedy) in zip(found, own, strict=True):
        assert log_prob == pytest.approx(expected, abs=1e-4)
        assert greedy == expected_greedy
    assert rolling[0] < 0


def test_the_openapi_document_is_kept(server: Live) -> None:
    """Every operation, with requests that are drawn from the document: no fault of ours, no other shape."""
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 14

    for operation in operations:

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def one(case: Any) -> None:
            body = case.body
            if isinstance(body, dict):
                body.pop("min_tokens", None)
                if "max_tokens" in body:
                    body["max_tokens"] = 2
            answer = case.call(timeout=60)
            assert answer.status_code < 500, (answer.status_code, answer.text)
            # An empty prompt and the like are refused although their shape is right.
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])

        one()
