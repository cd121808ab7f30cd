"""Bases as people have them, with adapters, in bfloat16, compiled, recomputing: they work or are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

import retro
from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel, fit
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
    base = type(llama()).from_pretrained(tmp_path / "base").bfloat16()
    model = fitted_with(reading, base=base)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    with torch.no_grad():
        assert torch.equal(model(tokens), llama().float().bfloat16()(tokens).logits)
        found = model(tokens, neighbours, mask)
        near, off = found.float().softmax(-1), model(tokens).float().softmax(-1)
    exact = FittedModel(type(base).from_pretrained(tmp_path / "base"), model.config)
    exact.load_state_dict({name: tensor.float() for name, tensor in model.state_dict().items()})
    with torch.no_grad():
        expected = exact(tokens, neighbours, mask).softmax(-1)
    # In total variation, on average over positions: far smaller than what neighbours change.
    error = (near - expected).abs().sum(-1).mean() / 2
    assert error < 0.1 * (off - expected).abs().sum(-1).mean() / 2 + 0.02
    model.save(tmp_path / "fitted")
    loaded = retro.load(tmp_path / "fitted")
    with torch.no_grad():
        assert torch.equal(loaded(tokens, neighbours, mask), found)


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_it_can_be_compiled(reading: str) -> None:
    model = fitted_with(reading)
    # Without a code generator: what may go wrong is the tracing through hooks.
    compiled = torch.compile(model, backend="eager")
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    for _ in range(2):
        torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-10, atol=1e-10)
        found = compiled(tokens, neighbours, mask)
        torch.testing.assert_close(found, model(tokens, neighbours, mask), rtol=1e-10, atol=1e-10)
    assert tokens.shape[1] > M
    torch._dynamo.reset()
