"""Where a question, its answer and its passages lie on the chunk grid, and that padding changes nothing."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from retro.comparators.passages import Frame, Prepended
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.model.retro import Retro
from retro.questions.batches import make_batch
from retro.questions.examples import Question
from retro.questions.format import Format, PromptFormat
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Passage, stack_neighbours
from retro.training.batches import Batch
from retro.workspace import Workspace
from tests.model.models import VOCAB, small_model


@pytest.fixture(scope="module")
def tokenizer(workspace: Workspace) -> Tokenizer:
    return workspace.datastore().tokenizer


@pytest.mark.parametrize("chunk_len", [8, 64])
@pytest.mark.parametrize(
    "question",
    ["", "who?", "which of the licences permits anyone to share, copy and modify the software? " * 3],
)
def test_answer_ends_a_chunk_however_long_the_question(
    tokenizer: Tokenizer, question: str, chunk_len: int
) -> None:
    prompt = Format(tokenizer, chunk_len).prompt(question)
    written = f"question: {question} \n answer:"
    assert len(prompt) == -(-len(tokenizer.encode(written)) // chunk_len) * chunk_len
    assert tokenizer.decode(prompt) == written
    num_padding = prompt.count(tokenizer.pad_id)
    assert num_padding < chunk_len
    assert prompt[:num_padding] == [tokenizer.pad_id] * num_padding


def test_the_answer_follows_and_ends(tokenizer: Tokenizer) -> None:
    tokens = Format(tokenizer, 8).answer("a licence")
    assert tokenizer.decode(tokens) == " a licence"
    assert tokens[-1] == tokenizer.end_id
    assert Format(tokenizer, 8).answer("") == [tokenizer.end_id]


def test_passages_are_cut_or_padded_to_the_retrieved_length(tokenizer: Tokenizer) -> None:
    form, long = Format(tokenizer, 16), Passage("the licence permits anyone " * 30, "T")
    whole, cut = form.passages([Passage("short", "A title"), long])
    assert (len(whole.tokens), len(cut.tokens)) == (32, 32)
    assert whole.text == "title: A title, source: short"
    assert tokenizer.decode(whole.tokens.tolist()) == whole.text
    assert cut.tokens.tolist() == tokenizer.encode(f"title: T, source: {long.text}")[:32]
    assert form.passages([]) == []
    asked = [Question("?", (), (long, Passage("short"), long))] * 2
    assert [form.num_cut(asked, k) for k in (0, 1, 2, 3)] == [0, 2, 2, 4]


def random_tokens(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, VOCAB, length).tolist() for length in lengths]


def given(*rows: list[int]) -> list[Neighbour]:
    return [Neighbour(0, 0.0, np.array(tokens), "", "", "", "") for tokens in rows]


def padded_batch(extra_chunks: int = 0) -> Batch:
    """Two questions of unequal length in chunks of four, one padded by 3 tokens and the other by 1.

    More chunks of padding are added to the second if they are asked for.
    """
    first, second = random_tokens(1, 7)
    prompts = [[0, 0, 0, *first], [0] * (4 * extra_chunks + 1) + second]
    passages = [given(*random_tokens(8, 8, seed=seed)) for seed in (1, 2)]
    return make_batch(prompts, random_tokens(6, 3, seed=3), passages, 4, 0)


def test_answers_alone_are_predicted_and_only_from_the_last_chunk_of_the_question_on_passages_are_read() -> (
    None
):
    batch = padded_batch()
    answers = random_tokens(6, 3, seed=3)
    assert batch.tokens.shape == (2, 8 + 6 - 1)
    assert [row[row != 0].tolist() for row in batch.targets] == answers
    assert (batch.targets[:, :7] == 0).all()
    assert batch.tokens[0, :7].tolist() == [0] * 7
    assert batch.neighbour_mask is not None
    assert batch.neighbours is not None
    assert batch.neighbour_mask[:, :, 0].tolist() == [[False, True, True]] * 2
    assert torch.equal(batch.neighbours[:, 1], batch.neighbours[:, 2])


def answer_logits(model: Retro, batch: Batch) -> torch.Tensor:
    logits: torch.Tensor = model(batch.tokens, batch.neighbours, batch.neighbour_mask)
    return logits[batch.targets != 0]


@pytest.mark.parametrize("share", [False, True])
def test_what_the_padding_is_changes_nothing(share: bool) -> None:
    """Garbage as the vector of padding, in decoder and encoder, reaches no logit of an answer.

    Nor does that of the passages' padding.
    """
    changes = {"share_embeddings": True, "d_model": 6} if share else {}
    model, batch = small_model(**changes), padded_batch()
    assert batch.neighbours is not None
    batch.neighbours[..., 6:] = 0
    before = answer_logits(model, batch)[:, 1:]  # the logit of padding itself is its vector's
    with torch.no_grad():
        for table in filter(None, (model.embedding, model.encoder_embedding)):
            table.weight[0] = 100 * torch.randn(table.embedding_dim)
    assert torch.equal(answer_logits(model, batch)[:, 1:], before)


def test_padding_by_whole_chunks_changes_nothing() -> None:
    """Alone, with more padding, or beside a longer question: the same logits."""
    model, batch = small_model(), padded_batch()
    before = answer_logits(model, batch)
    torch.testing.assert_close(answer_logits(model, padded_batch(extra_chunks=2)), before, rtol=0, atol=1e-12)
    (first, _), (answer, _), row = (
        random_tokens(1, 7),
        random_tokens(6, 3, seed=3),
        random_tokens(8, 8, seed=1),
    )
    alone = make_batch([[0, 0, 0, *first]], [answer], [given(*row)], 4, 0)
    torch.testing.assert_close(answer_logits(model, alone), before[:6], rtol=0, atol=1e-12)


def test_without_the_grid_padding_changes_nothing_at_all() -> None:
    """Closed book there is no grid: a padded question is the bare question."""
    model, [prompt], [answer] = small_model(), random_tokens(5), random_tokens(3, seed=1)
    bare, padded = (make_batch([tokens], [answer], [[]], 4, 0) for tokens in (prompt, [0, 0, 0, *prompt]))
    torch.testing.assert_close(answer_logits(model, padded), answer_logits(model, bare), rtol=0, atol=1e-12)


def test_cached_decoding_of_padded_questions_is_the_full_forward() -> None:
    model, batch = small_model(), padded_batch()
    assert batch.neighbours is not None
    assert batch.neighbour_mask is not None
    full = model(batch.tokens, batch.neighbours, batch.neighbour_mask)
    decoding = model.begin()
    prompts = batch.tokens[:, :8].tolist()
    found = [decoding.prefill(prompts, batch.neighbours[:, :2], batch.neighbour_mask[:, :2])]
    for place in range(8, 11):  # the second answer's tokens; the first one's go on over the third chunk's end
        found.append(decoding.step(batch.tokens[:, place].tolist()))
    decoding.select([0])
    found.append(
        decoding.step([int(batch.tokens[0, 11])], batch.neighbours[:1, 2], batch.neighbour_mask[:1, 2])
    )
    for place, logits in enumerate(found, start=7):
        torch.testing.assert_close(logits, full[: len(logits), place], rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_words", [3, 12, 40, 200])
def test_pieces_are_not_cut_and_hold_every_short_answer(tokenizer: Tokenizer, num_words: int) -> None:
    form = Format(tokenizer, 32)
    words = [f"word{number}" for number in range(num_words)]
    passage = Passage(" ".join(words), "A title", 0.5)
    pieces = form.pieces(passage)
    assert not form.num_cut([Question("?", (), tuple(pieces))], len(pieces))
    assert (pieces == [passage]) == (not form.num_cut([Question("?", (), (passage,))], 1))
    assert {(piece.title, piece.score) for piece in pieces} == {("A title", 0.5)}
    for pair in pairwise(words):
        assert any(" ".join(pair) in piece.text for piece in pieces)


@torch.no_grad()
def test_a_prompt_with_passages_is_tuned_on_as_it_is_read(tokenizer: Tokenizer) -> None:
    """One passage is cut; the logits after the prompt are those of the comparator with the same passages."""
    model = small_model(vocab_size=tokenizer.vocab_size, chunk_len=8)
    passages = (Passage("the licence permits anyone to share " * 3, "A"), Passage("without warranty", "B"))
    question = Question("who may share?", ("anyone",), (*passages, Passage("unread")))
    form = PromptFormat(tokenizer, 8, passage_len=24)
    prompt, neighbours = form.read(question, 2)
    assert neighbours == []
    assert not form.has_neighbours(question, 2)
    assert len(prompt) == form.prompt_len(question, 2)
    assert len(prompt) % 8 == 0
    shown = tokenizer.decode([token for token in prompt if token != tokenizer.pad_id])
    assert shown.startswith("title: B, source: without warranty\ntitle: A, source: the")
    assert shown.endswith("\nquestion: who may share? \n answer:")
    frame = Frame(ending=tuple(tokenizer.encode("\n")))
    prepended = Prepended(model, 24, frame)
    asked = Format(tokenizer, prepended.facts.chunk_len)
    found = [*[[]] * (len(asked.prompt(question.text)) // 12 - 1), asked.passages(passages)]
    values, mask = stack_neighbours(found, 24, tokenizer.pad_id)
    logits = prepended.begin().prefill(
        [asked.prompt(question.text)], torch.from_numpy(values)[None], torch.from_numpy(mask)[None]
    )
    torch.testing.assert_close(logits[0], model(torch.tensor([prompt]))[0, -1])
