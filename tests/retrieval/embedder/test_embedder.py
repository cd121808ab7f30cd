"""Both kinds of encoder on real models and tables of a few dimensions."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from retro.errors import DataError
from retro.machine import has_bfloat16
from retro.retrieval.embedder import embed_shards, open_embedder
from retro.retrieval.embedder.bert import batches_by_length
from retro.retrieval.embedder.packed import PackedBert, PackedLinear
from retro.retrieval.embedder.static import TEXTS_PER_BATCH, StaticEmbedder
from retro.stages.executor import LocalExecutor

WORDS = ["[UNK]", "free", "software", "licence", "whale", "sea"]


@pytest.fixture(scope="module")
def table() -> torch.Tensor:
    return torch.randn(len(WORDS), 8, generator=torch.Generator().manual_seed(0)).half()


@pytest.fixture
def static(tmp_path: Path, table: torch.Tensor) -> Path:
    """A folder with a table of six words and their tokenizer."""
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(2)  # as some come; the encoder reads the whole text
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_file({"embeddings": table}, tmp_path / "model.safetensors")
    return tmp_path


@pytest.fixture(scope="module")
def workers() -> LocalExecutor:
    return LocalExecutor(2)


def plain_keys(folder: str, texts: list[str]) -> np.ndarray:
    """What anybody would write, one text at a time."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        rows = [
            model(**tokenizer(text, truncation=True, max_length=256, return_tensors="pt"))
            .last_hidden_state[0]
            .mean(0)
            for text in texts
        ]
    return torch.stack(rows).numpy()


def test_bert_keys_are_means_over_real_word_pieces(bert: str, texts: list[str]) -> None:
    texts = [*texts[:12], "", "a", "long " * 300]
    embedder = open_embedder(bert)
    told: list[tuple[int, int]] = []
    keys = embedder.embed(texts, lambda done, total: told.append((done, total)))
    assert keys.dtype == np.float32
    assert keys.shape == (len(texts), embedder.width)
    np.testing.assert_allclose(keys, plain_keys(bert, texts), atol=1e-5)
    assert told[-1] == (len(texts), len(texts))
    assert embedder.embed([]).shape == (0, embedder.width)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_packed_layers_equal_plain_ones() -> None:
    for bias in (True, False):
        layer, x = torch.nn.Linear(5, 7, bias=bias), torch.randn(2, 3, 5)
        with torch.inference_mode():
            torch.testing.assert_close(PackedLinear(layer)(x), layer(x))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_bert_gives_the_hidden_states_of_its_model(bert: str, dtype: torch.dtype) -> None:
    import transformers

    if dtype == torch.bfloat16 and not has_bfloat16(torch.device("cpu")):
        pytest.skip("no bfloat16 in hardware")
    model = transformers.AutoModel.from_pretrained(bert).eval()
    ids = torch.randint(5, model.config.vocab_size, (3, 11), generator=torch.Generator().manual_seed(0))
    is_real = torch.arange(11) < torch.tensor([11, 4, 7])[:, None]
    with torch.inference_mode():
        expected = model(input_ids=ids, attention_mask=is_real.long()).last_hidden_state
        assert PackedBert.can_stand_for(model)
        for batch, real in ((ids, is_real), (ids[:1], is_real[:1])):
            found = PackedBert(transformers.AutoModel.from_pretrained(bert).eval(), dtype)(batch, real)
            tolerance = 1e-5 if dtype == torch.float32 else 5e-2
            torch.testing.assert_close(
                found.float()[real], expected[: len(batch)][real], atol=tolerance, rtol=tolerance
            )


def test_only_a_bert_is_packed_whole(bert: str) -> None:
    import transformers

    config = transformers.AutoConfig.from_pretrained(bert)
    config.hidden_act = "relu"
    assert not PackedBert.can_stand_for(transformers.BertModel(config))
    assert not PackedBert.can_stand_for(torch.nn.Linear(2, 2))


def test_batches_by_length_keep_their_budget() -> None:
    lengths = [3, 9, 0, 4, 4, 20, 3]
    batches = batches_by_length(lengths, 12)
    assert sorted(index for batch in batches for index in batch) == [0, 1, 3, 4, 5, 6]
    assert batches[0] == [5]  # longer than the budget, alone
    assert all(len(batch) * lengths[batch[0]] <= 12 for batch in batches[1:])


def test_a_fine_tuned_encoder_has_another_fingerprint(bert: str, tmp_path: Path) -> None:
    import transformers

    folder = tmp_path / "tuned"
    shutil.copytree(bert, folder)
    assert open_embedder(str(folder)).fingerprint == open_embedder(bert).fingerprint
    model = transformers.AutoModel.from_pretrained(folder)
    model.encoder.layer[0].output.dense.weight.data[0, 0] += 1e-3
    model.save_pretrained(folder)
    assert open_embedder(str(folder)).fingerprint != open_embedder(bert).fingerprint


def test_a_model_of_short_texts_truncates_at_its_own_limit(bert: str, tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig.from_pretrained(bert, max_position_embeddings=16)
    transformers.BertModel(config).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path)
    assert np.isfinite(open_embedder(str(tmp_path)).embed(["letters" * 9])).all()


@pytest.mark.parametrize("kind", ["causal", "encoder-decoder"])
def test_other_text_models_give_their_hidden_states(bert: str, tmp_path: Path, kind: str) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(bert)
    if kind == "causal":
        model = transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=len(tokenizer), n_embd=8, n_layer=1, n_head=2)
        )
    else:
        model = transformers.T5Model(
            transformers.T5Config(
                vocab_size=len(tokenizer), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2
            )
        )
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    keys = open_embedder(str(tmp_path)).embed(["one", "another text"])
    assert keys.shape == (2, 8)
    assert np.isfinite(keys).all()


def test_what_is_no_encoder_says_so_in_one_line(bert: str, tmp_path: Path) -> None:
    import transformers

    pictures = tmp_path / "pictures"
    vision = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32
    )
    transformers.ViTModel(vision).save_pretrained(pictures)
    transformers.AutoTokenizer.from_pretrained(bert).save_pretrained(pictures)
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken"
    shutil.copytree(bert, broken)
    (broken / "model.safetensors").write_bytes(b"not weights")
    expected = {
        str(pictures): "'vit' model that does not read text",
        str(tmp_path / "empty"): r"holds no embedder.*config\.json",
        str(broken): "no embedder could be loaded",
        "nobody/nothing": "no embedder could be loaded",
        str(tmp_path / "missing"): "no embedder could be loaded",
    }
    for name, message in expected.items():
        with pytest.raises(DataError, match=message) as caught:
            open_embedder(name)
        assert "\n" not in str(caught.value)
        assert "retro fetch minilm" in str(caught.value)


def test_static_keys_are_means_of_unit_length(static: Path, table: torch.Tensor) -> None:
    embedder = open_embedder(str(static))
    assert isinstance(embedder, StaticEmbedder)
    keys = embedder.embed(["", "free software licence free", "whale", "!", ""])
    mean = table.float()[[1, 2, 3, 1]].mean(0)
    np.testing.assert_allclose(keys[1], mean / mean.norm(), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), [0, 1, 1, 1, 0], atol=1e-6)
    assert keys.dtype == np.float32
    assert embedder.embed([]).shape == (0, embedder.width) == (0, 8)


def test_static_keys_do_not_depend_on_the_batch(static: Path) -> None:
    embedder = open_embedder(str(static))
    texts = [f"{first} {second}" for first in WORDS for second in WORDS] * (TEXTS_PER_BATCH // 36 + 1)
    told: list[tuple[int, int]] = []
    keys = embedder.embed(texts, lambda done, total: told.append((done, total)))
    assert told == [(TEXTS_PER_BATCH, len(texts)), (len(texts), len(texts))]
    np.testing.assert_array_equal(keys[-36:], embedder.embed(texts[-36:]))


def test_another_table_is_another_encoder(static: Path, table: torch.Tensor) -> None:
    before = open_embedder(str(static)).fingerprint
    save_file({"embeddings": table + 1}, static / "model.safetensors")
    assert open_embedder(str(static)).fingerprint != before


def test_a_table_without_a_row_for_every_token_is_refused(static: Path, table: torch.Tensor) -> None:
    save_file({"embeddings": table[:4].clone()}, static / "model.safetensors")
    with pytest.raises(DataError, match=r"6 tokens and .* 4 rows"):
        open_embedder(str(static))
    (static / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"is no tokenizer"):
        open_embedder(str(static))


def test_shards_give_the_same_keys_with_any_number_of_workers(
    bert: str, texts: list[str], workers: LocalExecutor
) -> None:
    shards = [texts[:5], [], texts[5:12], [""]]
    embedder = open_embedder(bert)
    one, two = (
        list(embed_shards(executor, embedder, iter(shards))) for executor in (LocalExecutor(1), workers)
    )
    assert [keys.shape for keys in one] == [(len(shard), embedder.width) for shard in shards]
    for ours, theirs in zip(one, two, strict=True):
        assert ours.dtype == np.float16
        np.testing.assert_array_equal(ours, theirs)


def test_a_worker_refuses_an_encoder_that_changed(
    static: Path, table: torch.Tensor, workers: LocalExecutor
) -> None:
    embedder = open_embedder(str(static))
    save_file({"embeddings": table + 1}, static / "model.safetensors")
    with pytest.raises(DataError, match="changed while its keys were made"):
        list(embed_shards(workers, embedder, [["free"], ["whale"]]))


@pytest.mark.skipif(not has_bfloat16(torch.device("cpu")), reason="no bfloat16 in hardware")
def test_bfloat16_keys_are_nearly_those_of_float32(bert: str, texts: list[str]) -> None:
    exact, quick = (open_embedder(bert, precision).embed(texts) for precision in ("float32", "bfloat16"))
    assert quick.dtype == np.float32
    assert not np.array_equal(exact, quick)
    np.testing.assert_allclose(quick, exact, atol=0.05)
    assert open_embedder(bert, "bfloat16").fingerprint == open_embedder(bert).fingerprint
