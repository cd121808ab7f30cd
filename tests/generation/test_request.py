"""A request is refused when it is made, before anything heavy is loaded."""

import subprocess
import sys

import pytest

from retro.errors import ConfigError, DataError
from retro.generation.request import Choice, Prompt, Request, Retrieval


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": float("nan")},
        {"repetition_penalty": 0.0},
        {"min_tokens": -1},
        {"stop": ("",)},
    ],
)
def test_impossible_choices_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Choice(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"num_neighbours": 0}, {"every": 0}])
def test_impossible_retrievals_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="expected at least 1"):
        Retrieval(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompts": [""]}, "prompt is empty; expected at least one character"),
        ({"prompts": ["a", Prompt([])]}, "prompt is empty; expected at least one token"),
        ({"prompts": ["ab\ud800"]}, "character 3 is half a surrogate pair"),
        ({"prompts": "ab"}, "prompts is one text"),
        ({"prompts": ["a"], "max_tokens": 0}, "max_tokens is 0; expected at least 1"),
        ({"prompts": ["a"], "max_tokens": 3, "choice": Choice(min_tokens=5)}, "expected at least 5"),
        ({"prompts": ["a"], "samples": 0}, "samples is 0"),
    ],
)
def test_impossible_requests_are_refused(fields: dict, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        Request(**fields)


def test_a_request_comes_from_a_prompt_or_several_or_from_another_request() -> None:
    one = Request.of("a", max_tokens=3, retrieval=Retrieval(every=2))
    assert one == Request(prompts=["a"], max_tokens=3, retrieval=Retrieval(every=2))
    assert Request.of(one, retrieval=False) == Request(prompts=["a"], max_tokens=3, retrieval=False)
    assert Request.of(Prompt([1, 2])).prompts == [Prompt([1, 2])]
    assert Request.of(("a", "b")).prompts == ["a", "b"]
    with pytest.raises(TypeError, match="max_token"):
        Request.of("a", max_token=3)


def test_a_request_needs_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "transformers", "faiss"}
    program = f"import sys, retro.generation.request; print(set(sys.modules) & {heavy})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
