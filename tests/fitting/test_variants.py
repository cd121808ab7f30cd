"""Bases as people have them, with adapters, in bfloat16, compiled, recomputing: they work or are refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import retro
from retro.config.fit import FitConfig
from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel
from retro.fitting.passport import fit
from tests.fitting.test_fitted import READINGS, M, fitted_with, grow, llama, neighbours_of, text


def with_adapter() -> Any:
    """A Llama with a LoRA on its attention that changes something."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(5)
    wrapped = peft.get_peft_model(
        llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "o_proj"])
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            parameter.data = 0.3 * torch.randn_like(parameter)
    return wrapped.eval()


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_a_base_with_adapters_is_fitted_as_it_is(reading: str) -> None:
    wrapped, tokens = with_adapter(), text(2, 29)
    expected = wrapped(tokens).logits
    assert not torch.allclose(expected, llama()(tokens).logits)
    model = fitted_with(reading, base=wrapped.get_base_model())
    assert torch.equal(model(tokens), expected)
    neighbours = [neighbours_of(row[None])[0][0] for row in tokens]
    whole = model(tokens, torch.stack(neighbours)).log_softmax(-1)
    for step, logits in enumerate(grow(model, list(tokens), [10, 10], neighbours)):
        torch.testing.assert_close(logits.log_softmax(-1), whole[:, 9 + step], rtol=1e-8, atol=1e-8)
    assert not any(parameter.requires_grad for parameter in model.base.parameters())


def test_adapters_that_are_in_no_folder_are_not_saved(tmp_path: Path) -> None:
    wrapped = with_adapter()
    with pytest.raises(ConfigError, match=r"a PeftModel\w* was given; expected the model inside it"):
        fit(wrapped)
    model = fitted_with("attention", base=wrapped.get_base_model())
    with pytest.raises(ConfigError, match=r"the base has adapters .* merge_and_unload"):
        model.save(tmp_path / "fitted")
    merged = fitted_with("attention", base=with_adapter().merge_and_unload())
    merged.save(tmp_path / "fitted")


def test_a_base_that_recomputes_is_refused() -> None:
    base = llama()
    base.gradient_checkpointing_enable()
    with pytest.raises(ConfigError, match="the base recomputes its layers"):
        fit(base)
    base.gradient_checkpointing_disable()
    # Switched on later it does nothing, as a frozen base never trains.
    model = fitted_with("attention", base=base)
    tokens, targets = text(2, 29), text(2, 29, seed=2)
    neighbours, mask = neighbours_of(tokens)
    expected = model.score(tokens, targets, neighbours, mask).log_probs
    base.gradient_checkpointing_enable()
    model.train()
    found = model.score(tokens, targets, neighbours, mask).log_probs
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert model.bias is not None
    assert model.bias.grad is not None
    assert model.bias.grad.abs().sum() > 0


@pytest.mark.parametrize("reading", READINGS)
def test_bfloat16_is_exact_without_neighbours_and_close_with_them(reading: str, tmp_path: Path) -> None:
    llama().float().save_pretrained(tmp_path / "base")
    opened = AutoModelForCausalLM.from_pretrained
    model = fitted_with(reading, base=opened(tmp_path / "base", dtype=torch.bfloat16))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    exact = FittedModel(opened(tmp_path / "base"), model.config)
    exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    model.save(tmp_path / "fitted")
    loaded = retro.load(tmp_path / "fitted")
    with torch.no_grad():
        off, on = model(tokens), model(tokens, neighbours, mask)
        assert torch.equal(off, opened(tmp_path / "base", dtype=torch.bfloat16)(tokens).logits)
        assert torch.equal(loaded(tokens, neighbours, mask), on)
        # Made half after it was opened, it is the same.
        assert torch.equal(exact.to(torch.bfloat16)(tokens, neighbours, mask), on)


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_half_precision_loses_no_more_with_neighbours_than_without(reading: str, tmp_path: Path) -> None:
    llama().float().save_pretrained(tmp_path / "base")
    opened = AutoModelForCausalLM.from_pretrained
    half = fitted_with(reading, base=opened(tmp_path / "base", dtype=torch.bfloat16))
    exact = FittedModel(opened(tmp_path / "base"), half.config)
    exact.load_state_dict({name: tensor.float() for name, tensor in half.state_dict().items()})
    # Compared with the same rounded weights, so that only the computation differs.
    exact.base.load_state_dict({name: tensor.float() for name, tensor in half.base.state_dict().items()})
    tokens = text(4, 40)
    neighbours, mask = neighbours_of(tokens)

    def error(*inputs: Any) -> float:
        near, expected = (one(*inputs).float().softmax(-1) for one in (half, exact))
        return float((near - expected).abs().sum(-1).mean())

    assert error(tokens, neighbours, mask) < 2 * error(tokens) < 0.2


@pytest.mark.slow
def test_it_can_be_compiled() -> None:
    # In a process of its own, as the checks of shapes, which only tests have, cannot be traced. And without a
    # code generator: what may go wrong is the tracing through hooks.
    code = """
import torch
from tests.fitting.test_fitted import READINGS, M, fitted_with, neighbours_of, text
with torch.no_grad():
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    for reading in READINGS:
        model = fitted_with(reading)
        compiled = torch.compile(model, backend="eager")
        for _ in range(2):
            torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-10, atol=1e-10)
            found = compiled(tokens, neighbours, mask)
            torch.testing.assert_close(found, model(tokens, neighbours, mask), rtol=1e-10, atol=1e-10)
        assert not torch.allclose(found, model(tokens))
        print(reading)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == list(READINGS), done.stderr


def test_unless_heads_are_tuned_no_gradient_enters_the_base() -> None:
    """What is trained is the pointer's gate, so a step costs no more than reading."""
    model = FittedModel(llama(), FitConfig(chunk_len=M, tune_heads=False))
    tokens, targets = text(2, 29), text(2, 29, seed=2)
    neighbours, mask = neighbours_of(tokens)
    states, _ = model._read(tokens, model.retrieve(tokens, neighbours, mask))
    assert not states.requires_grad
    model.score(tokens, targets, neighbours, mask).log_probs.sum().backward()
    assert model.bias is not None
    assert model.bias.grad is None
    assert model.pointer is not None
    assert model.pointer.gate.bias.grad is not None
