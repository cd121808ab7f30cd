"""A fitted model: exact without neighbours, causal and equal to the cached path with them."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from retro.config.fit import FitConfig
from retro.fitting.fitted import FittedModel
from retro.fitting.passport import fit
from retro.model.protocol import score_each

VOCAB = 61
M = 8
READINGS = ("attention", "none", "cross-attention")


def llama(seed: int = 0, **options: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        **options,
    )
    return LlamaForCausalLM(config).eval().double()


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=256, initializer_range=0.3
    )
    return GPT2LMHeadModel(config).eval().double()


def fitted_with(reading: str, pointer: bool = True, base: Any = None) -> FittedModel:
    encoder = {"d_model": 16, "num_layers": 2, "num_heads": 2, "head_dim": 8, "ffw_dim": 32}
    from retro.config import EncoderConfig

    torch.manual_seed(1)
    config = FitConfig(chunk_len=M, reading=reading, pointer=pointer, encoder=EncoderConfig(**encoder))
    model = FittedModel(llama() if base is None else base, config)
    # As if trained: nothing that starts at zero or at a constant may hide a fault.
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(params=READINGS)
def model(request: pytest.FixtureRequest) -> Iterator[FittedModel]:
    fitted = fitted_with(request.param)
    yield fitted
    fitted.detach()


def text(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def neighbours_of(tokens: Tensor, k: int = 2, seed: int = 1) -> tuple[Tensor, Tensor]:
    batch, chunks = len(tokens), tokens.shape[1] // M
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, VOCAB, (batch, chunks, k, 2 * M), generator=generator)
    mask = torch.ones(batch, chunks, k, dtype=torch.bool)
    mask[0, 0, -1] = False
    # Some share a run with the chunk that found them.
    for chunk in range(chunks):
        found[:, chunk, chunk % k, 2 : 2 + chunk] = tokens[:, chunk * M : chunk * M + chunk]
    # A neighbour that ends early: what follows is padding, behind the base's embedding.
    found[:, -1, 0, M + 3 :] = VOCAB
    return found, mask


@torch.no_grad()
def test_without_neighbours_it_is_the_base_to_the_bit(model: FittedModel) -> None:
    bare = llama()
    tokens = text(2, 29)
    assert torch.equal(model(tokens), bare(tokens).logits)
    padded = tokens.clone()
    padded[0, 20:] = model.facts.pad_id
    mask = padded != model.facts.pad_id
    expected = bare(input_ids=padded.masked_fill(~mask, 0), attention_mask=mask.long()).logits
    assert torch.equal(model(padded), expected)


@torch.no_grad()
def test_several_numbers_of_neighbours_are_what_each_is_alone(
    model: FittedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens, 4)
    targets = torch.where(torch.arange(29) > 3, tokens.roll(-1, 1), model.facts.pad_id)
    asked = []
    retrieve = model.retrieve
    monkeypatch.setattr(model, "retrieve", lambda *given: asked.append(given) or retrieve(*given))
    together = score_each(model, tokens, targets, (0, 1, 4), neighbours, mask, greedy=True)
    # Once for each text, and once without any.
    assert [given[1] is not None for given in asked] == [False, True, True]
    for k, found in zip((0, 1, 4), together, strict=True):
        retrieved = (neighbours[:, :, :k], mask[:, :, :k]) if k else ()
        whole = model(tokens, *retrieved).log_softmax(-1)
        expected = whole.gather(-1, targets.clamp(max=VOCAB - 1)[..., None])[..., 0] * (targets < VOCAB)
        torch.testing.assert_close(found.log_probs, expected, rtol=1e-9, atol=1e-9)
        best = (whole.argmax(-1) == targets) | (targets == model.facts.pad_id)
        assert torch.equal(found.greedy, best)
    assert not torch.allclose(together[1].log_probs, together[2].log_probs)


@torch.no_grad()
def test_neighbours_are_read_no_deeper_than_they_are_needed() -> None:
    model = fitted_with("attention")
    tokens = text(1, 29)
    run: list[int] = []
    layers: Any = model.base.model.layers
    for number, layer in enumerate(layers):
        layer.mlp.register_forward_hook(lambda *_, number=number: run.append(number))
    retrieved = model.retrieve(tokens, *neighbours_of(tokens))
    assert retrieved is not None
    assert sorted(retrieved.memories) == [0, 1, 2]
    # Of the last layer that is read only keys and values are.
    assert run == [0, 1]
    model.detach()


@torch.no_grad()
def test_neighbours_change_something_and_masked_ones_nothing(model: FittedModel) -> None:
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    base = model(tokens)
    with_all = model(tokens, neighbours, mask)
    assert torch.equal(with_all[:, : M - 1], base[:, : M - 1])
    assert (with_all[:, M - 1 :] - base[:, M - 1 :]).abs().amax(-1).min() > 1e-6
    assert torch.equal(model(tokens, neighbours, torch.zeros_like(mask)), base)
    # What a masked neighbour holds does not matter.
    other = neighbours.clone()
    other[0, 0, -1] = 5
    assert torch.equal(model(tokens, other, mask), with_all)


@torch.no_grad()
def test_the_order_of_neighbours_does_not_matter(model: FittedModel) -> None:
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens, k=3)
    turned = model(tokens, neighbours.flip(2), mask.flip(2))
    torch.testing.assert_close(turned, model(tokens, neighbours, mask), rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_it_is_causal_in_every_token_and_every_chunk(model: FittedModel) -> None:
    tokens = text(1, 4 * M)
    neighbours, mask = neighbours_of(tokens)
    before = model(tokens, neighbours, mask)
    for place in range(tokens.shape[1]):
        changed = tokens.clone()
        changed[0, place] = (changed[0, place] + 1) % VOCAB
        after = model(changed, neighbours, mask)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-12)
        assert not torch.allclose(after[:, place], before[:, place])
    for chunk in range(neighbours.shape[1]):
        changed = neighbours.clone()
        changed[0, chunk, 0] = (changed[0, chunk, 0] + 1) % VOCAB
        after = model(tokens, changed, mask)
        first = (chunk + 1) * M - 1
        assert torch.equal(after[:, :first], before[:, :first])
        assert not torch.allclose(after[:, first], before[:, first])


@torch.no_grad()
def test_sequences_of_a_batch_do_not_meet(model: FittedModel) -> None:
    tokens = text(3, 29)
    neighbours, mask = neighbours_of(tokens)
    together = model(tokens, neighbours, mask)
    for row in range(3):
        alone = model(tokens[row : row + 1], neighbours[row : row + 1], mask[row : row + 1])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("greedy", [False, True])
@torch.no_grad()
def test_scores_are_those_of_the_logits(model: FittedModel, greedy: bool) -> None:
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    targets = text(2, 29, seed=2)
    targets[1, 3:9] = model.facts.pad_id
    logits = model(tokens, neighbours, mask)
    scored = model.score(tokens, targets, neighbours, mask, greedy=greedy)
    wanted = targets != model.facts.pad_id
    expected = logits.log_softmax(-1).gather(-1, targets.masked_fill(~wanted, 0)[..., None])[..., 0] * wanted
    torch.testing.assert_close(scored.log_probs, expected, rtol=1e-9, atol=1e-9)
    if greedy:
        assert scored.greedy is not None
        assert torch.equal(scored.greedy, (logits.argmax(-1) == targets) | ~wanted)


def test_scores_in_training_have_gradients_and_are_the_same() -> None:
    for reading in READINGS:
        model = fitted_with(reading)
        tokens, targets = text(2, 29), text(2, 29, seed=2)
        neighbours, mask = neighbours_of(tokens)
        with torch.no_grad():
            expected = model.score(tokens, targets, neighbours, mask).log_probs
        model.train()
        found = model.score(tokens, targets, neighbours, mask).log_probs
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        found.sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name
        assert all(parameter.grad is None for parameter in model.base.parameters())


def grow(
    model: FittedModel, tokens: list[Tensor], starts: list[int], neighbours: list[Tensor]
) -> list[Tensor]:
    """Logits after each token from the prompts on, with the neighbours of every complete chunk."""
    decoding = model.begin()
    chunks = max(starts) // M
    padded = torch.stack([found[:chunks] for found in neighbours]) if chunks else None
    logits = [decoding.prefill([row[:n].tolist() for row, n in zip(tokens, starts, strict=True)], padded)]
    for step in range(min(len(row) - n for row, n in zip(tokens, starts, strict=True))):
        completing = decoding.completing
        places = [starts[row] + step for row in range(len(tokens))]
        given = [neighbours[row][places[row] // M] for row in completing]
        fed = [int(tokens[row][place]) for row, place in enumerate(places)]
        logits.append(decoding.step(fed, torch.stack(given) if given else None))
    return logits


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("starts", [[3, 3], [13, 20], [16, 5], [24, 8]])
@torch.no_grad()
def test_token_by_token_is_the_whole(reading: str, starts: list[int]) -> None:
    model = fitted_with(reading)
    tokens = list(text(2, 44))
    neighbours = [neighbours_of(row[None])[0][0] for row in tokens]
    whole = [model(row[None], found[None]) for row, found in zip(tokens, neighbours, strict=True)]
    for step, logits in enumerate(grow(model, tokens, starts, neighbours)):
        for row, start in enumerate(starts):
            expected = whole[row][0, start + step - 1].log_softmax(-1)
            torch.testing.assert_close(logits[row].log_softmax(-1), expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_prompts_that_begin_with_padding_of_their_own(reading: str) -> None:
    # As questions do, whose last token must end a chunk.
    model = fitted_with(reading)
    tokens = text(2, 2 * M + 4)
    tokens[0, :3] = model.facts.pad_id
    tokens[1, : M + 1] = model.facts.pad_id
    neighbours, _ = neighbours_of(tokens)
    mask = torch.tensor([[[True, True], [True, False]], [[False, False], [True, True]]])
    whole = model(tokens, neighbours, mask).log_softmax(-1)
    decoding = model.begin()
    logits = decoding.prefill(tokens[:, : 2 * M].tolist(), neighbours, mask)
    for place in range(2 * M, 2 * M + 4):
        torch.testing.assert_close(logits.log_softmax(-1), whole[:, place - 1], rtol=1e-8, atol=1e-8)
        logits = decoding.step(tokens[:, place].tolist())


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_a_chunk_without_neighbours_reads_none_token_by_token(reading: str) -> None:
    model = fitted_with(reading)
    tokens = text(1, 4 * M)
    neighbours, _ = neighbours_of(tokens)
    mask = torch.tensor([[[True, True], [False, False], [True, False], [True, True]]])
    whole = model(tokens, neighbours, mask).log_softmax(-1)
    decoding = model.begin()
    decoding.prefill([tokens[0, : M + 2].tolist()], neighbours[:, :1])
    for place in range(M + 2, 4 * M):
        chunk = place // M
        given = (neighbours[:, chunk], mask[:, chunk]) if decoding.completing and chunk != 1 else ()
        logits = decoding.step([int(tokens[0, place])], *given)
        torch.testing.assert_close(logits.log_softmax(-1), whole[:, place], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("reading", READINGS)
@torch.no_grad()
def test_sequences_that_are_selected_go_on(reading: str) -> None:
    model = fitted_with(reading)
    tokens = text(2, 40)
    neighbours, _ = neighbours_of(tokens)
    decoding = model.begin()
    decoding.prefill([row[:12].tolist() for row in tokens], neighbours[:, :1])
    decoding.select([1, 1, 0])
    logits = decoding.step([3, 4, 5])
    for row, (source, token) in enumerate([(1, 3), (1, 4), (0, 5)]):
        grown = torch.cat([tokens[source, :12], torch.tensor([token])])[None]
        expected = model(grown, neighbours[source : source + 1, :1])[0, -1]
        torch.testing.assert_close(
            logits[row].log_softmax(-1), expected.log_softmax(-1), rtol=1e-8, atol=1e-8
        )


@torch.no_grad()
def test_two_threads_with_other_neighbours_do_not_meet() -> None:
    model = fitted_with("attention")
    tokens = text(1, 29)
    sets = [neighbours_of(tokens, seed=seed) for seed in (1, 2)]
    expected = [model(tokens, *found) for found in sets]
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(20):
            with torch.no_grad():
                if not torch.equal(model(tokens, *sets[number]), expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@torch.no_grad()
def test_detached_the_base_is_as_it_was() -> None:
    base = llama()
    implementation = base.config._attn_implementation
    names = list(base.state_dict())
    fitted = fit(base, FitConfig(chunk_len=M))
    assert list(base.state_dict()) == names
    assert fitted.detach() is base
    assert base.config._attn_implementation == implementation
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in base.modules())


@torch.no_grad()
def test_absolute_positions_work_too() -> None:
    model = fitted_with("attention", base=gpt2())
    assert not model.relative
    tokens = text(2, 29)
    assert torch.equal(model(tokens), gpt2()(tokens).logits)
    neighbours, mask = neighbours_of(tokens)
    assert not torch.allclose(model(tokens, neighbours, mask), model(tokens))


@torch.no_grad()
def test_a_copied_neighbour_is_followed() -> None:
    # The neighbour is the text itself, so the pointer must vote for what really comes next.
    model = FittedModel(llama(), FitConfig(chunk_len=M, reading="none", pointer_layer=2))
    tokens = text(1, 3 * M)
    model.calibrate(tokens)
    neighbours = torch.stack([tokens[0, : 2 * M], tokens[0, M : 3 * M], tokens[0, : 2 * M]])[None, :, None]
    targets = torch.cat([tokens[:, 1:], tokens.new_full((1, 1), VOCAB)], 1)
    off = model.score(tokens, targets).log_probs
    on = model.score(tokens, targets, neighbours).log_probs
    assert on[:, M - 1 : 2 * M].sum() > off[:, M - 1 : 2 * M].sum() + 5


def test_what_is_saved_is_small_and_loads_again(tmp_path: Path) -> None:
    import retro

    base = llama().float()
    base.save_pretrained(tmp_path / "base")
    from transformers import AutoModelForCausalLM

    opened = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = fitted_with("attention", base=opened)
    model.save(tmp_path / "fitted")
    loaded = retro.load(tmp_path / "fitted")
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    with torch.no_grad():
        assert torch.equal(loaded(tokens, neighbours, mask), model(tokens, neighbours, mask))
    assert (tmp_path / "fitted" / "model.safetensors").stat().st_size < 20_000
    other = llama(seed=3).float()
    other.save_pretrained(tmp_path / "base")
    with pytest.raises(retro.RetroError, match="expected the same weights"):
        retro.load(tmp_path / "fitted")


def test_a_record_older_than_likeness_is_read(tmp_path: Path) -> None:
    import json

    import retro

    llama().float().save_pretrained(tmp_path / "base")
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    model = FittedModel(base, FitConfig(chunk_len=M, weigh_likeness=False))
    model.save(tmp_path / "fitted")
    record = json.loads((tmp_path / "fitted" / "run.json").read_text())
    del record["model"]["fit"]["weigh_likeness"]
    (tmp_path / "fitted" / "run.json").write_text(json.dumps(record))
    loaded = retro.load(tmp_path / "fitted")
    tokens = text(2, 29)
    neighbours, mask = neighbours_of(tokens)
    with torch.no_grad():
        assert torch.equal(loaded(tokens, neighbours, mask), model(tokens, neighbours, mask))
