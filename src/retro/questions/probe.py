"""A synthetic task that only the passages can solve: the code of a key, which is new for every question.

It tells a pathway that carries nothing from a model that has learned too little. Keys and codes are words of a small stock,
paired anew each time, so that closed book, or with another question's passages, nothing beats a guess.
"""

from pathlib import Path

import numpy as np
import torch

from retro.config import EncoderConfig, ModelConfig, TrainingConfig
from retro.corpus.tokenizers.sentencepiece import SentencePieceTokenizer, train_model
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.model.checkpoint import load
from retro.model.retro import Retro
from retro.questions.answering import Answerer
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.experiment import Comparison, compare
from retro.questions.format import ANSWER, PROMPT, Format, written_passage
from retro.questions.sources import own_passages
from retro.retrieval.retriever import Passage
from retro.stages.progress import Progress
from retro.training.trainer import train

NUM_KEYS, NUM_CODES, NUM_PASSAGES = 40, 40, 4
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def words(number: int, num_syllables: int, seed: int) -> list[str]:
    """Different pseudo-words of equally many syllables."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, None] = {}
    while len(drawn) < number:
        drawn["".join(rng.choice(_SYLLABLES, num_syllables))] = None
    return list(drawn)


def make_questions(number: int, seed: int, num_passages: int = NUM_PASSAGES) -> list[Question]:
    """Questions for the code of a key; one passage tells it and the others tell the codes of other keys."""
    keys, codes, rng = words(NUM_KEYS, 2, 1), words(NUM_CODES, 3, 2), np.random.default_rng(seed)
    questions = []
    for _ in range(number):
        chosen = rng.choice(keys, num_passages, replace=False)
        told = rng.choice(codes, num_passages, replace=False)
        passages = tuple(
            Passage(f"the code of {key} is {code}", str(key)) for key, code in zip(chosen, told, strict=True)
        )
        place = rng.integers(num_passages)
        questions.append(Question(f"what is the code of {chosen[place]}?", (str(told[place]),), passages))
    return questions


def make_tokenizer(vocab_size: int = 420) -> Tokenizer:
    """A tokenizer of the task's own text."""
    rows = make_questions(2000, seed=0)
    texts = [PROMPT.format(question=row.text) + ANSWER.format(answer=row.answers[0]) for row in rows]
    texts += [written_passage(passage) for row in rows for passage in row.passages]
    return SentencePieceTokenizer(train_model(texts, vocab_size))


def probe_model(tokenizer: Tokenizer, copying_start: bool = True) -> ModelConfig:
    encoder = EncoderConfig(d_model=64, num_layers=2, num_heads=4, head_dim=16, ffw_dim=128)
    return ModelConfig(
        vocab_size=tokenizer.vocab_size, d_model=64, num_layers=3, num_heads=4, head_dim=16, ffw_dim=128, chunk_len=16,
        cross_attention_layers=(2, 3), encoder=encoder, share_embeddings=True, copying_start=copying_start, pad_id=tokenizer.pad_id,
    )  # fmt: skip


def probe_training(num_steps: int = 400) -> TrainingConfig:
    return TrainingConfig(
        seq_len=32, batch_size=32, num_steps=num_steps, num_neighbours=NUM_PASSAGES, learning_rate=3e-3, min_learning_rate=3e-4, warmup_steps=50,
        weight_decay=0.01, validate_every=100, validate_batches=8, checkpoint_every=100, precision="float32",
    )  # fmt: skip


def run_probe(
    path: Path,
    config: TrainingConfig | None = None,
    copying_start: bool = True,
    num_test: int = 200,
    progress: Progress | None = None,
) -> Comparison:
    """Train a small RETRO from scratch on the task, in the folder `path`, and answer new questions in every way."""
    config, tokenizer = config or probe_training(), make_tokenizer()
    model_config = probe_model(tokenizer, copying_start)
    form, k = Format(tokenizer, model_config.chunk_len), config.num_neighbours

    def batches_of(number: int, seed: int) -> QuestionBatches:
        return QuestionBatches(make_questions(number, seed, k), form, config.batch_size, k, config.seed)

    torch.manual_seed(config.seed)
    batches, valid = batches_of(config.num_steps * config.batch_size, 1), batches_of(8 * config.batch_size, 2)
    artifact = train(
        Retro(model_config), batches, config, path, {"tokenizer": tokenizer.fingerprint}, valid, progress
    )
    answerer = Answerer(load(artifact.path), tokenizer, own_passages(k), batch_size=50)
    return compare(answerer, make_questions(num_test, 3, k))
