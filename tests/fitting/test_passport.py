"""The passport over small models of many kinds, and what was once found wrongly in some of them."""

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from retro.config.fit import FitConfig
from retro.errors import ConfigError
from retro.fitting import whole
from retro.fitting.fitted import FittedModel
from retro.fitting.interface import names_of, put_in, take_out
from retro.fitting.passport import AFTER, WORKS, Passport, fit, inspect_base
from retro.fitting.places import find_places

ROOT = Path(__file__).parent.parent.parent
SURVEY: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "make_bases.py"))
"""The script that writes docs/reference/bases.md."""
KINDS = """
    apertus bamba bert bloom codegen cohere deepseek_v3 falcon falcon_h1 falcon_mamba gemma gemma2 gemma3_text
    gemma3n_text glm4 gpt2 gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite hrm_text jamba lfm2 llama
    llama4_text longcat_flash mamba minimax mistral mixtral modernbert-decoder mpt nemotron_h olmo2 olmoe
    openai-gpt opt persimmon phi phi3 prophetnet qwen2 qwen3 qwen3_next rwkv smollm3 stablelm starcoder2 xglm
    xlnet
"""
"""Those whose rows are checked each time; a slow test of the documentation checks all."""
M = 4


def kinds() -> list[str]:
    return [*KINDS.split(), "bert" + SURVEY["DECODER"], "roberta" + SURVEY["DECODER"]]


def small(kind: str) -> nn.Module:
    with SURVEY["quiet"]():
        model: nn.Module = SURVEY["small_model"](kind)
    return model


def passport_of(model: nn.Module) -> Passport:
    with SURVEY["quiet"]():
        return inspect_base(model)


def test_many_kinds_are_tried() -> None:
    assert len(set(kinds())) >= 40


@pytest.mark.parametrize("kind", kinds())
def test_a_kind_is_what_the_reference_says(kind: str) -> None:
    found = SURVEY["line"](SURVEY["row"](kind, SURVEY["passport_of"](kind)))
    assert found in SURVEY["PAGE"].read_text().splitlines(), "run: make docs"


def test_a_model_is_left_as_it_was() -> None:
    model = small("llama").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    chance = torch.get_rng_state()
    inspect_base(model)
    assert torch.equal(torch.get_rng_state(), chance)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert [name for _, name in names_of(model)] == ["sdpa"]


# What is refused


def test_a_model_that_sees_the_future_is_refused() -> None:
    model = small("bert")
    with pytest.raises(ConfigError, match="causality: token 2 changes the logits at token 1"):
        fit(model)
    assert passport_of(model).readings == ()


def test_an_encoder_and_a_decoder_are_refused() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=61, d_model=16, d_kv=4, d_ff=16, num_layers=2, num_heads=4)
    with pytest.raises(ConfigError, match="an encoder and a decoder"):
        fit(T5ForConditionalGeneration(config))


def test_another_stream_is_refused() -> None:
    passport = passport_of(small("gemma3n_text"))
    assert not passport["layers"].is_refused
    assert "(4, 2, 12, 32)" in passport["residual stream"].reason


def test_layers_that_run_twice_are_refused() -> None:
    assert "run in the order (1, 2, 3, 4, 1, 2, …)" in passport_of(small("hrm_text"))["layers"].reason


def test_a_reading_is_refused_by_its_name_and_the_others_work() -> None:
    model = small("bloom")
    with pytest.raises(ConfigError, match=r"cannot be fitted with reading attention .*attention interface"):
        fit(model, FitConfig(chunk_len=M, reading="attention"))
    fit(model, FitConfig(chunk_len=M, reading="none")).detach()
    fit(model, FitConfig(chunk_len=M, reading="cross-attention")).detach()


def test_an_unknown_attention_is_named() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for table in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        table.register("their_own", table["sdpa"])
    model = small("llama")
    for config, _ in names_of(model):
        config._attn_implementation = "their_own"
    passport = passport_of(model)
    assert passport["reading attention"].reason == "its attention is 'their_own', not sdpa or eager"
    assert passport.readings == ("cross-attention", "none")


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss", "bart"])
def test_the_literal_softmax_tells_a_wrong_one(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(kind)
    assert passport_of(model)["reading attention"].verdict == WORKS
    right: Callable[..., Tensor] = whole.own_total
    monkeypatch.setattr(whole, "own_total", lambda asked: right(asked) + 0.05)
    found = passport_of(model)["reading attention"]
    assert found.is_refused
    assert "against one softmax over neighbours and text" in found.reason


@pytest.mark.parametrize(("kind", "option"), [("gemma2", "softcap"), ("gpt_oss", "s_aux")])
def test_caps_and_sinks_take_part_in_the_softmax(
    kind: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from retro.fitting.interface import Asked

    model = small(kind)
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = 0.5
    assert passport_of(model)["reading attention"].verdict == WORKS
    asked = {"softcap": "softcap", "s_aux": "sinks"}[option]
    monkeypatch.setattr(Asked, asked, property(lambda _: None))
    assert passport_of(model)["reading attention"].is_refused


# What was found wrongly


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("llama", "self_attn"),
        ("gpt2", "attn"),
        ("gpt_neo", "attn"),
        ("opt", "self_attn"),  # its feed-forward layer reads batch and time folded into one dimension
        ("bloom", "self_attention.dense"),  # its attention adds the stream itself
        ("gemma2", "post_attention_layernorm"),
        ("olmo2", "post_attention_layernorm"),
    ],
)
def test_the_place_between_is_found(kind: str, name: str) -> None:
    places = find_places(small(kind))
    assert places.num_between == len(places.layers)
    assert all(
        writer is layer.get_submodule(name)
        for layer, writer in zip(places.layers, places.writers, strict=True)
    )


@pytest.mark.parametrize("kind", ["falcon", "gpt_neox", "phi", "cohere", "gptj", "mamba"])
def test_parallel_blocks_have_none(kind: str) -> None:
    model = small(kind)
    assert find_places(model).num_between == 0
    assert passport_of(model)["reading cross-attention"].verdict == AFTER


def test_a_hybrid_reads_where_it_attends() -> None:
    model = small("jamba")
    fitted = fit(model, FitConfig(chunk_len=M))
    assert fitted.config.layers == (2, 4)
    fitted.detach()
    with pytest.raises(ConfigError, match=r"layers has 1, which has no self-attention .* some of 2, 4"):
        FittedModel(model, FitConfig(chunk_len=M, layers=(1, 2)))


def test_capped_logits_are_capped_to_the_bit() -> None:
    model = small("gemma2")
    # Logits so small that a cap changes them by less than any tolerance.
    model.get_output_embeddings().weight.data *= 3e-3
    fitted = FittedModel(model, FitConfig(chunk_len=M, reading="none"))
    states = torch.randn(2, 3, 32)
    cap = model.config.final_logit_softcapping
    assert torch.equal(fitted.head(states), torch.tanh(model.lm_head(states) / cap) * cap)
    assert (fitted.head(1e6 * states).abs() <= cap).all()


def test_modules_before_the_output_matrix_belong_to_the_head() -> None:
    assert passport_of(small("modernbert-decoder")).readings == ("attention", "cross-attention", "none")


def test_positions_that_begin_elsewhere_are_left_to_the_model() -> None:
    fitted = FittedModel(small("roberta as decoder"), FitConfig(chunk_len=M, reading="none"))
    assert not fitted.takes_positions
    assert passport_of(fitted.detach())["cache"].verdict == WORKS


def test_a_state_space_model_is_sampled_from_by_its_own_cache() -> None:
    fitted = FittedModel(small("mamba"), FitConfig(chunk_len=M, reading="none"))
    tokens = torch.arange(4, 16)[None]
    expected = fitted(tokens)[0]
    decoding = fitted.begin()
    found = [decoding.prefill([tokens[0, :5].tolist()])[0]]
    found += [decoding.step([int(token)])[0] for token in tokens[0, 5:]]
    torch.testing.assert_close(torch.stack(found), expected[4:], rtol=1e-4, atol=1e-4)
    with pytest.raises(ConfigError, match="a prompt padded on the left gives logits that are off"):
        decoding.prefill([[5, 6, 7], [8]])


def test_a_cache_that_forgets_is_refused_and_not_used() -> None:
    fitted = FittedModel(small("rwkv"), FitConfig(chunk_len=M, reading="none"))
    with pytest.raises(ConfigError, match=r"RwkvForCausalLM cannot be sampled from: token by token it gives"):
        fitted.begin().prefill([[5, 6, 7]])


def test_configs_inside_configs_get_their_own_attention_back() -> None:
    model = small("gemma4")
    before = [name for _, name in names_of(model)]
    assert len(before) > 1
    inner = names_of(model)[-1][0]
    inner._attn_implementation = "eager" if before[-1] == "sdpa" else "sdpa"
    before = [name for _, name in names_of(model)]
    put_in(model, "retro_test_", lambda *_, **__: None)  # type: ignore[arg-type, return-value]
    assert [name for _, name in names_of(model)] == ["retro_test_" + name for name in before]
    take_out(model, "retro_test_")
    assert [name for _, name in names_of(model)] == before


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with SURVEY["quiet"]():
        yield
