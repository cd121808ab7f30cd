"""Runs behind transformers' interface: opened by the Auto classes, and generated from by `generate`."""

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    LogitsProcessor,
    PretrainedConfig,
    pipeline,
)

import retro
from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel
from retro.generation.drawing import draw
from retro.generation.request import Choice, Prompt
from retro.generation.sampler import Sampler
from retro.generation.sequence import Growing, Sample
from retro.hugging_face import RetroCache, RetroFittedForCausalLM, RetroForCausalLM
from retro.retrieval.retriever import Passages, Retriever
from retro.workspace import Workspace
from tests.generation.test_sampler import random_model
from tests.hugging_face.parts import M, padded, until_end

GREEDY = Choice(temperature=0.0)
LENGTHS = (5, 19, 8, 16)


def prompts_of(retriever: Retriever, texts: list[str]) -> list[list[int]]:
    """Prompts of several lengths: within the first chunk, beyond the second, and just complete."""
    pairs = zip(texts, LENGTHS, strict=False)
    return [retriever.tokenizer.encode(text)[3 : 3 + length] for text, length in pairs]


def opened(folder: Path, retriever: Retriever | None = None) -> Any:
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.retriever = retriever
    return model


@torch.no_grad()
def test_the_auto_class_opens_a_fitted_run(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    model = opened(fitted)
    assert type(model) is RetroFittedForCausalLM
    assert model.config.model_type == "retro-fitted"
    assert model.config.chunk_len == M
    tokens = torch.tensor([retriever.tokenizer.encode(texts[0])[:29]])
    mine = retro.load(fitted)
    chunks = [tokens[0, start : start + M].numpy() for start in range(0, 24, M)]
    values, mask = (torch.from_numpy(array)[None] for array in retriever.values(chunks, 2))
    expected = mine(tokens, values.long(), mask)
    assert torch.equal(model(tokens, neighbours=values.long(), neighbour_mask=mask).logits, expected)
    # What a retriever finds is what was given.
    model.retriever = retriever
    assert torch.equal(model(tokens).logits, expected)
    assert not torch.allclose(expected, mine(tokens))


def test_the_auto_class_opens_a_run_of_our_own(
    workspace: Workspace, bert: str, texts: list[str], tmp_path: Path
) -> None:
    random_model(bert).float().save(tmp_path / "mine")
    model = opened(tmp_path / "mine")
    assert type(model) is RetroForCausalLM
    model = model.double()
    model.retriever = retriever = Retriever(workspace.datastore(), 2)
    sampler = Sampler(model.model, retriever)
    prompts = prompts_of(retriever, texts)
    samples = sampler.generate_all([Prompt(tokens) for tokens in prompts], max_tokens=21, choice=GREEDY)
    inputs = padded(prompts, model.config.pad_token_id)
    rows = model.generate(**inputs, max_new_tokens=21, do_sample=False)[:, inputs["input_ids"].shape[1] :]
    for row, (sample,) in zip(rows.tolist(), samples, strict=True):
        assert until_end(row, retriever.tokenizer.end_id) == sample.continuation
        assert any(sample.neighbours)


@pytest.mark.parametrize("uses_cache", [True, False])
def test_without_a_retriever_it_is_the_base_to_the_bit(
    fitted: Path, base_folder: Path, retriever: Retriever, texts: list[str], uses_cache: bool
) -> None:
    model, base = opened(fitted), AutoModelForCausalLM.from_pretrained(base_folder)
    if not uses_cache:
        # Without a cache only the last states are multiplied by the output matrix, and torch does that in
        # another order for a matrix that is frozen, as a fitted base's is (`should_fold` in its matmul).
        base.requires_grad_(False)
    prompts = prompts_of(retriever, texts)
    for batch in (prompts, prompts[1:2]):
        inputs = padded(batch, base.config.eos_token_id)
        with torch.no_grad():
            assert torch.equal(model(**inputs).logits, base(**inputs).logits)
        settings = {
            "max_new_tokens": 20,
            "do_sample": False,
            "use_cache": uses_cache,
            "output_logits": True,
            "return_dict_in_generate": True,
            "pad_token_id": base.config.eos_token_id,
        }
        mine, own = (one.generate(**inputs, **settings) for one in (model, base))
        assert torch.equal(mine.sequences, own.sequences)
        for found, expected in zip(mine.logits, own.logits, strict=True):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("uses_cache", [True, False])
def test_greedy_tokens_are_the_samplers(
    fitted: Path, retriever: Retriever, texts: list[str], uses_cache: bool
) -> None:
    model = opened(fitted, retriever).double()
    prompts = prompts_of(retriever, texts)
    sampler = Sampler(model.model, retriever)
    samples = sampler.generate_all([Prompt(tokens) for tokens in prompts], max_tokens=21, choice=GREEDY)
    assert all(any(sample.neighbours) for (sample,) in samples)
    inputs = padded(prompts, model.config.pad_token_id)
    rows = model.generate(**inputs, max_new_tokens=21, do_sample=False, use_cache=uses_cache)
    for row, (sample,) in zip(rows[:, inputs["input_ids"].shape[1] :].tolist(), samples, strict=True):
        assert until_end(row, retriever.tokenizer.end_id) == sample.continuation
    model.retriever = None
    off = model.generate(**inputs, max_new_tokens=21, do_sample=False)
    assert off.tolist() != rows.tolist()


class DrawnLike(LogitsProcessor):
    """Leaves the token alone that the sampler's own random numbers would draw."""

    def __init__(self, retriever: Retriever, count: int, choice: Choice) -> None:
        sample = Sample(tokens=[], prompt_len=0, chunk_len=M)
        self.rows = [Growing(sample, retriever.tokenizer, choice, 1, "3/0") for _ in range(count)]
        self.choice = choice

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        uniforms = torch.tensor([row.uniform() for row in self.rows], dtype=torch.float64)
        drawn = draw(scores, uniforms, self.choice)
        return torch.full_like(scores, -torch.inf).scatter(1, drawn[:, None], 0.0)


def test_sampled_tokens_are_the_samplers(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    model = opened(fitted, retriever)
    prompts, choice = prompts_of(retriever, texts), Choice(temperature=1.3, top_k=20)
    sampler = Sampler(model.model, retriever)
    samples = sampler.generate_all(
        [Prompt(tokens) for tokens in prompts], max_tokens=21, choice=choice, seed=3
    )
    inputs = padded(prompts, model.config.pad_token_id)
    rows = model.generate(
        **inputs,
        max_new_tokens=21,
        do_sample=True,
        top_k=0,
        logits_processor=[DrawnLike(retriever, len(prompts), choice)],
    )
    for row, (sample,) in zip(rows[:, inputs["input_ids"].shape[1] :].tolist(), samples, strict=True):
        assert until_end(row, retriever.tokenizer.end_id) == sample.continuation


def test_what_is_sampled_has_the_probabilities_of_the_whole(
    fitted: Path, retriever: Retriever, texts: list[str]
) -> None:
    model = opened(fitted, retriever).double()
    inputs = padded(prompts_of(retriever, texts), model.config.pad_token_id)
    torch.manual_seed(0)
    drawn = model.generate(
        **inputs,
        max_new_tokens=18,
        do_sample=True,
        num_return_sequences=2,
        eos_token_id=None,
        output_logits=True,
        return_dict_in_generate=True,
    )
    start = inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"].repeat_interleave(2, 0), torch.ones(8, 18).long()], 1)
    with torch.no_grad():
        whole = model(drawn.sequences, attention_mask=mask).logits.log_softmax(-1)
    assert drawn.sequences[0].tolist() != drawn.sequences[1].tolist()
    for step, logits in enumerate(drawn.logits):
        expected = whole[:, start + step - 1].float()
        torch.testing.assert_close(logits.log_softmax(-1), expected, rtol=1e-4, atol=1e-4)


def test_beams_with_the_cache_are_beams_without(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    model = opened(fitted, retriever).double()
    inputs = padded(prompts_of(retriever, texts), model.config.pad_token_id)
    settings = {
        "max_new_tokens": 20,
        "num_beams": 3,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_scores": True,
        "length_penalty": 0.0,
        "eos_token_id": None,
    }
    fast = model.generate(**inputs, **settings)
    slow = model.generate(**inputs, **settings, use_cache=False)
    assert fast.sequences.tolist() == slow.sequences.tolist()
    torch.testing.assert_close(fast.sequences_scores, slow.sequences_scores, rtol=1e-4, atol=1e-4)
    greedy = model.generate(**inputs, max_new_tokens=20, do_sample=False, eos_token_id=None)
    assert fast.sequences.tolist() != greedy.tolist()
    # A beam's score is the log-probability of its tokens, with the neighbours that they themselves find.
    start = inputs["input_ids"].shape[1]
    mask = torch.cat([inputs["attention_mask"], torch.ones(len(LENGTHS), 20).long()], 1)
    with torch.no_grad():
        logits = model(fast.sequences, attention_mask=mask).logits
    log_probs = logits[:, start - 1 : -1].log_softmax(-1).gather(-1, fast.sequences[:, start:, None])
    torch.testing.assert_close(fast.sequences_scores.double(), log_probs.sum((1, 2)), rtol=1e-4, atol=1e-4)


def test_tokens_that_were_guessed_change_nothing(
    fitted: Path, retriever: Retriever, texts: list[str]
) -> None:
    model = opened(fitted, retriever).double()
    prompt = torch.tensor([retriever.tokenizer.encode(texts[0])[:40]])
    plain = model.generate(prompt, max_new_tokens=24, do_sample=False)
    guessed = model.generate(prompt, max_new_tokens=24, do_sample=False, prompt_lookup_num_tokens=3)
    assert guessed.tolist() == plain.tolist()


def test_the_pipeline_writes_what_the_sampler_writes(
    fitted: Path, base_work: Workspace, retriever: Retriever, texts: list[str]
) -> None:
    # A run carries a copy of this tokenizer.
    tokenizer = AutoTokenizer.from_pretrained(base_work.tokenizer_path)
    model = opened(fitted, retriever)
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    sample = Sampler(model.model, retriever).generate(texts[1][:60], max_tokens=20, choice=GREEDY)
    (found,) = write(texts[1][:60], max_new_tokens=20, do_sample=False, return_full_text=False)
    assert found["generated_text"] == sample.text
    assert any(sample.neighbours)


def test_two_threads_with_other_retrievers_do_not_meet(
    fitted: Path, retriever: Retriever, texts: list[str]
) -> None:
    shared = retro.load(fitted).double()
    passages = Passages([texts[3][:40], texts[5][:40]], retriever.tokenizer, M)
    models = [RetroForCausalLM.of(shared, searcher) for searcher in (retriever, passages, None)]
    tokens = torch.tensor([retriever.tokenizer.encode(texts[0])[:18]])

    def write(model: Any) -> list[list[int]]:
        found: list[list[int]] = model.generate(tokens, max_new_tokens=20, do_sample=False).tolist()
        return found

    expected = [write(model) for model in models]
    assert len({str(rows) for rows in expected}) == 3
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(write, models * 3)) == expected * 3


def test_the_loss_is_the_models_own(fitted: Path, retriever: Retriever, texts: list[str]) -> None:
    model = opened(fitted, retriever).train()
    tokens = torch.tensor([retriever.tokenizer.encode(texts[0])[:29]])
    loss = model(tokens, labels=tokens).loss
    cache = RetroCache(model.model, model.search)
    cache.fill(tokens.tolist(), 29)
    with torch.no_grad():
        scored = model.model.score(tokens[:, :-1], tokens[:, 1:], *cache.stacked())
    torch.testing.assert_close(-scored.log_probs.mean(), loss.detach(), rtol=1e-4, atol=1e-4)
    loss.backward()
    trained = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    assert trained
    assert all(parameter.grad is not None for parameter in trained)


def test_what_is_saved_opens_again(fitted: Path, tmp_path: Path, texts: list[str]) -> None:
    model = opened(fitted)
    model.generation_config.max_new_tokens = 5
    model.save_pretrained(tmp_path / "again")
    again = opened(tmp_path / "again")
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, model(tokens).logits)
    assert again.generate(tokens, eos_token_id=None).shape == (1, 25)


def test_a_model_that_is_there_can_be_wrapped(base_folder: Path, retriever: Retriever) -> None:
    base = AutoModelForCausalLM.from_pretrained(base_folder)
    model = RetroForCausalLM.of(retro.fit(base, retro.FitConfig(chunk_len=M)), retriever)
    assert isinstance(model.model, FittedModel)
    assert model.generate(torch.arange(20)[None], max_new_tokens=3, eos_token_id=None).shape == (1, 23)


def test_what_cannot_work_is_refused_in_one_line(
    fitted: Path, base_folder: Path, retriever: Retriever, workspace: Workspace, bert: str
) -> None:
    model = opened(fitted, retriever)
    tokens = torch.arange(20)[None]
    with pytest.raises(ConfigError, match="cache_implementation is 'static'; expected none"):
        model.generate(tokens, max_new_tokens=3, cache_implementation="static")
    with pytest.raises(ConfigError, match="the cache is a DynamicCache; expected a RetroCache"):
        model(tokens, past_key_values=DynamicCache())
    with pytest.raises(ConfigError, match="inputs_embeds was given; expected input_ids alone"):
        model(inputs_embeds=torch.zeros(1, 3, 32))
    with pytest.raises(ConfigError, match="no input_ids was given"):
        model()
    with pytest.raises(ConfigError, match="neighbours were given to a model that generates"):
        model(tokens, neighbours=torch.zeros(1, 2, 1, 2 * M).long(), use_cache=True)
    with pytest.raises(ConfigError, match="output_attentions was given"):
        model(tokens, output_attentions=True)
    with pytest.raises(ConfigError, match="chunks have 4 tokens; expected the model's 8"):
        model.retriever = Passages(["a passage"], retriever.tokenizer, 4)
    with pytest.raises(ConfigError, match="a baseline was given a retriever"):
        RetroForCausalLM.of(random_model(bert, baseline=True), retriever)
    with pytest.raises(ConfigError, match="device_map is 'auto'; expected one device"):
        AutoModelForCausalLM.from_pretrained(fitted, device_map="auto")
    with pytest.raises(ConfigError, match="made of a config alone"):
        RetroForCausalLM(PretrainedConfig())
    cache = RetroCache(model.model, model.search)
    with pytest.raises(ConfigError, match="a base was given the cache"):
        AutoModelForCausalLM.from_pretrained(base_folder)(tokens, past_key_values=cache)
    with pytest.raises(retro.RetroError, match="is a model of retro"):
        retro.fitting.base.open_base(str(fitted))


def test_a_datastore_of_another_tokenizer_is_refused(
    fitted: Path, base_work: Workspace, workspace: Workspace, retriever: Retriever, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(fitted, folder)
    shutil.copytree(base_work.tokenizer_path, folder / "tokenizer")
    model = opened(folder, retriever)
    with pytest.raises(retro.RetroError, match="the datastore was made with tokenizer"):
        model.retriever = Retriever(workspace.datastore())
    assert model.retriever is retriever


@pytest.mark.parametrize("first", ["retro", "transformers"])
@pytest.mark.parametrize("table", ["import transformers", "from transformers import AutoModelForCausalLM"])
def test_either_may_be_imported_first(fitted: Path, first: str, table: str) -> None:
    lines = ["import retro", table] if first == "retro" else [table, "import retro"]
    code = "\n".join(
        [
            *lines,
            "from transformers import AutoModelForCausalLM",
            "import sys",
            f"print(type(AutoModelForCausalLM.from_pretrained({str(fitted)!r})).__name__)",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith("RetroFittedForCausalLM"), done.stderr
