"""What must hold for any weights: causality, independence, symmetry, masks."""

import pytest
import torch
from torch.nn import functional as F

from retro.errors import ConfigError, DataError
from retro.model.chunked_cross_attention import ChunkedCrossAttention
from retro.model.retro import Retro, embed
from tests.model.models import random_inputs, small_config, small_model
from tests.model.test_reference import VARIANTS

SWITCHES = [name for name in VARIANTS if name != "baseline"]


def probe(model: Retro, position: int, seq_len: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    """Size of the gradient of one position's logits by each token's vector and by each chunk's neighbour
    vectors."""
    tokens, neighbours, _ = random_inputs(model.config, 1, seq_len, k=2)
    captured: list[torch.Tensor] = []

    def capture(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        captured.append(output)

    handles = [
        table.register_forward_hook(capture)
        for table in (model.embedding, model.encoder_embedding)
        if table is not None
    ]
    logits = model(tokens, neighbours)
    for handle in handles:
        handle.remove()
    by_token, by_neighbour = torch.autograd.grad(logits[0, position].square().sum(), captured)
    return by_token[0].abs().sum(-1), by_neighbour[0].abs().sum((1, 2, 3))


@pytest.mark.parametrize("position", range(11))
def test_every_position_is_causal(position: int) -> None:
    """Token t sees the tokens ≤ t, and the neighbours of exactly the chunks that are complete at t."""
    model = small_model()
    by_token, by_chunk = probe(model, position)
    assert (by_token[: position + 1] > 0).all()
    assert (by_token[position + 1 :] == 0).all()
    num_complete = (position + 1) // model.config.chunk_len
    assert (by_chunk[:num_complete] > 0).all()
    assert (by_chunk[num_complete:] == 0).all()


def test_cross_attention_distances_run_from_the_chunk_start() -> None:
    """With m = 8 the attending positions of a chunk are 7 … 14 of the neighbour's own, for each neighbour
    alike.

    A map that makes the logit the distance's cosine of frequency 1 shows the distances directly.
    """
    m, width = 8, 2
    operator = ChunkedCrossAttention(width, width, num_heads=1, head_dim=1, chunk_len=m).double()
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.zero_()
        operator.norm.weight.fill_(1.0)
        operator.attention.position.weight.copy_(torch.tensor([[0.0, 1.0]]))
        operator.attention.position_bias.fill_(1.0)
        operator.attention.value.weight.copy_(torch.tensor([[1.0, 0.0]]))
        operator.attention.out.weight.copy_(torch.tensor([[1.0], [0.0]]))
    encoded = torch.randn(1, 1, 2, 2 * m, width, dtype=torch.float64)
    output = operator(
        torch.zeros(1, 2 * m - 1, width, dtype=torch.float64),
        encoded,
        torch.ones(1, 1, 2, 2 * m, dtype=torch.bool),
    )
    positions = torch.arange(2 * m, dtype=torch.float64)
    for row, query_position in enumerate(range(m - 1, 2 * m - 1)):
        weights = torch.cat([torch.cos(query_position - positions)] * 2).softmax(0)
        expected = (weights * encoded[0, 0, :, :, 0].flatten()).sum()
        torch.testing.assert_close(output[0, m - 1 + row, 0], expected)


def test_sequences_of_a_batch_do_not_touch() -> None:
    model = small_model()
    tokens, neighbours, mask = random_inputs(model.config, batch=3, seq_len=10, k=2)
    together = model(tokens, neighbours, mask)
    for row in range(3):
        alone = model(tokens[row : row + 1], neighbours[row : row + 1], mask[row : row + 1])
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("variant", SWITCHES)
def test_order_of_neighbours_does_not_matter(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=12, k=3)
    order = torch.tensor([2, 0, 1])
    torch.testing.assert_close(
        model(tokens, neighbours, mask),
        model(tokens, neighbours[:, :, order], mask[:, :, order]),
        rtol=0,
        atol=1e-12,
    )


@pytest.mark.parametrize("variant", SWITCHES)
def test_masked_neighbours_change_nothing(variant: str) -> None:
    model = small_model(**VARIANTS[variant])
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=12, k=3)
    mask[..., 0] = True
    noise = torch.randint_like(neighbours, 1, 31)
    replaced = torch.where(mask[..., None], neighbours, noise)
    assert torch.equal(model(tokens, neighbours, mask), model(tokens, replaced, mask))
    assert (
        not torch.equal(model(tokens, neighbours, mask), model(tokens, noise, mask))
        or model.config.retrieval.quiet_start
    )
    fewer = model(tokens, neighbours[:, :, :1], mask[:, :, :1])
    only_first = model(tokens, neighbours, mask & (torch.arange(3) == 0))
    torch.testing.assert_close(fewer, only_first, rtol=0, atol=1e-12)


def test_padding_of_a_neighbour_changes_nothing() -> None:
    """A longer tail of padding cannot be told from a shorter neighbour: no key, no value, no position of it
    is used."""
    model = small_model(cross_attention_layers=(1,))
    tokens, neighbours, _ = random_inputs(model.config, batch=1, seq_len=4, k=1)
    neighbours[..., 3:] = model.config.pad_id
    captured = model.encode(neighbours, neighbours != 0, embed(model.embedding, tokens), tokens != 0)
    with torch.no_grad():
        table = model.encoder_embedding
        assert table is not None
        table.weight[model.config.pad_id] += 1.0
    again = model.encode(neighbours, neighbours != 0, embed(model.embedding, tokens), tokens != 0)
    assert torch.equal(captured[..., :3, :], again[..., :3, :])


def test_no_neighbour_at_all_is_exactly_retrieval_off() -> None:
    model = small_model()
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=11, k=2)
    off = model(tokens)
    assert torch.equal(off, model(tokens, neighbours, torch.zeros_like(mask)))
    assert torch.equal(off, model(tokens, torch.zeros_like(neighbours)))
    assert torch.equal(off, model(tokens, neighbours[:, :, :0], mask[:, :, :0]))


def test_retrieval_off_is_the_plain_decoder() -> None:
    model = small_model()
    baseline = Retro(model.config.baseline()).double()
    baseline.load_state_dict(
        {key: value for key, value in model.state_dict().items() if key in baseline.state_dict()}
    )
    tokens, _, _ = random_inputs(model.config, batch=2, seq_len=11, k=2)
    assert torch.equal(model(tokens), baseline(tokens))


def test_left_padding_changes_nothing_but_by_whole_chunks() -> None:
    model = small_model(cross_attention_layers=())
    tokens, _, _ = random_inputs(model.config, batch=1, seq_len=7, k=1)
    torch.testing.assert_close(model(F.pad(tokens, (5, 0)))[:, 5:], model(tokens), rtol=0, atol=1e-12)


def test_neighbours_of_one_sequence_do_not_broadcast_over_two() -> None:
    model = small_model()
    tokens, neighbours, mask = random_inputs(model.config, batch=2, seq_len=8, k=2)
    with pytest.raises(DataError, match="expected"):
        model.check_neighbours(tokens, neighbours[:1], mask[:1])
    with pytest.raises(DataError, match="complete chunks"):
        model.check_neighbours(tokens, neighbours[:, :1], mask[:, :1])


def test_baseline_refuses_neighbours() -> None:
    model = small_model(cross_attention_layers=())
    tokens, neighbours, _ = random_inputs(model.config, batch=1, seq_len=8, k=2)
    with pytest.raises(ConfigError, match="without cross-attention"):
        model(tokens, neighbours)


@pytest.mark.parametrize("name", ["num_heads", "head_dim", "ffw_dim"])
def test_no_config_field_is_ignored(name: str) -> None:
    config = small_config()
    grown = small_config(**{name: getattr(config, name) + 1})
    assert Retro(grown).num_parameters() > Retro(config).num_parameters()


def test_causal_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    inputs = random_inputs(model.config, batch=2, seq_len=11, k=2)
    whole = model(*inputs)
    for block in (1, 3, 4, 10):
        monkeypatch.setattr("retro.model.attention.CAUSAL_BLOCK", block)
        torch.testing.assert_close(model(*inputs), whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("retrieved", "kept"), [("neighbour", slice(0, 4)), ("continuation", slice(4, 8))])
def test_a_part_of_the_neighbour_keeps_its_place(retrieved: str, kept: slice) -> None:
    """Reading N or F alone is reading [N, F] with the other half turned to padding: nothing moves."""
    part, both = small_model(retrieved=retrieved), small_model()
    tokens, neighbours, mask = random_inputs(both.config, batch=2, seq_len=11, k=2)
    neighbours = torch.randint_like(neighbours, 1, 31)
    half = torch.zeros_like(neighbours)
    half[..., kept] = neighbours[..., kept]
    torch.testing.assert_close(part(tokens, neighbours, mask), both(tokens, half, mask), rtol=0, atol=1e-12)
    assert not torch.allclose(part(tokens, neighbours, mask), both(tokens, neighbours, mask))
