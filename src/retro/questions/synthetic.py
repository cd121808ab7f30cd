"""Synthetic questions: cloze questions from any text, and a probe that needs its passages.

A *cloze* question asks for a name or number in a sentence, and the text around the sentence
is its passage. It teaches a model to look up an answer when there are few real questions to
learn from. It is for training only.

The *probe* asks for the code of a key. Keys and codes are words from a small stock, paired
anew for every question. Closed book, or with another question's passages, nothing beats a
guess. So the probe distinguishes a retrieval path that carries nothing from a model that has
merely learned too little.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from retro.config import EncoderConfig, ModelConfig, RetrievalConfig, TrainingConfig
from retro.corpus.documents import Document
from retro.corpus.tokenizers.sentencepiece import train_tokenizer
from retro.corpus.tokenizers.tokenizer import Tokenizer
from retro.corpus.tokens import TokenStore
from retro.questions.answering import Answerer, own_passages
from retro.questions.batches import QuestionBatches
from retro.questions.examples import Question
from retro.questions.format import ANSWER, PROMPT, Format, written_passage
from retro.questions.scoring import Comparison, compare
from retro.retrieval.retriever import Passage
from retro.run import Origin, load, make_model
from retro.stages.progress import Progress, no_progress
from retro.stages.stage import Artifact
from retro.training.loop import train

SENTENCE = re.compile(r"[A-Z][^.!?\n]{40,300}[.!?](?=\s)")
NAME = re.compile(r"(?<=[a-z,] )[A-Z][a-z]+(?: (?:of |the )?[A-Z][a-z]+){0,3}\b")
YEAR = re.compile(r"\b1\d{3}\b|\b20\d{2}\b")
NUMBER = re.compile(r"(?<![\d.,])\d[\d,]*(?![\d.,]*\d)")
ASKED = ((YEAR, "when"), (NAME, "what"), (NUMBER, "how many"))
"""What is asked for, and the word that replaces it in the question."""
CONTEXT = 6
"""How many words on either side of the answer the question keeps."""
PASSAGE = 400
"""Characters in a passage."""

NUM_KEYS = 40
NUM_CODES = 40
NUM_PASSAGES = 4
_SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


def cloze_questions(
    documents: Iterable[Document], per_document: int = 4, seed: int = 0
) -> Iterator[Question]:
    """At most `per_document` questions from each document, each with the passage
    that answers it."""
    rng = np.random.default_rng(seed)
    for document in documents:
        sentences = list(SENTENCE.finditer(document.text))
        for place in rng.permutation(len(sentences))[:per_document]:
            question = _cloze_question(document, sentences[place], rng)
            if question is not None:
                yield question


def documents_of(store: TokenStore, tokenizer: Tokenizer) -> Iterator[Document]:
    """The documents of a token store as text again."""
    for number, row in enumerate(store.documents):
        text = tokenizer.decode(store.document(number).tolist())
        yield Document(row["id"], text, row["source"], row["title"])


def _cloze_question(document: Document, sentence: re.Match[str], rng: np.random.Generator) -> Question | None:
    """A question about a sentence, unless nothing can be asked or the question gives it away."""
    # The kind is drawn first, then the match: names would otherwise crowd out years.
    kinds = [(found, word) for pattern, word in ASKED if (found := list(pattern.finditer(sentence[0])))]
    if not kinds:
        return None
    found, word = kinds[rng.integers(len(kinds))]
    answer = found[rng.integers(len(found))]
    before = sentence[0][: answer.start()].split()[-CONTEXT:]
    after = sentence[0][answer.end() :].rstrip(".!? ").split()[:CONTEXT]
    text = " ".join([*before, word, *after]).lower()
    # Too few words to tell what is asked, or the answer among them.
    if len(before) + len(after) < CONTEXT or answer[0].lower() in text:
        return None
    # The passage begins at a random place before the sentence, so that the answer may
    # be anywhere in it.
    room = max(1, PASSAGE - len(sentence[0]))
    start = max(0, sentence.start() - int(rng.integers(room)))
    passage = " ".join(document.text[start : start + max(PASSAGE, len(sentence[0]))].split())
    return Question(text, (answer[0],), (Passage(passage, document.title),))


def words(number: int, num_syllables: int, seed: int) -> list[str]:
    """Distinct pseudo-words with the same number of syllables."""
    rng = np.random.default_rng(seed)
    drawn: dict[str, None] = {}  # a set that keeps its order, so that the words depend on the seed alone
    while len(drawn) < number:
        drawn["".join(rng.choice(_SYLLABLES, num_syllables))] = None
    return list(drawn)


def make_questions(number: int, seed: int, num_passages: int = NUM_PASSAGES) -> list[Question]:
    """Questions about the code of a key; one passage has it, the others have
    those of other keys."""
    # The stock is fixed; the seed decides only which are paired.
    keys, codes = words(NUM_KEYS, 2, 1), words(NUM_CODES, 3, 2)
    rng = np.random.default_rng(seed)
    questions = []
    for _ in range(number):
        chosen = rng.choice(keys, num_passages, replace=False)
        drawn = rng.choice(codes, num_passages, replace=False)
        passages = tuple(
            Passage(f"the code of {key} is {code}", str(key)) for key, code in zip(chosen, drawn, strict=True)
        )
        place = rng.integers(num_passages)
        questions.append(Question(f"what is the code of {chosen[place]}?", (str(drawn[place]),), passages))
    return questions


def make_tokenizer(folder: Path, vocab_size: int = 420) -> Tokenizer:
    """A tokenizer trained on the probe's own text, written into a folder."""
    rows = make_questions(2000, seed=0)
    texts = [PROMPT.format(question=row.text) + ANSWER.format(answer=row.answers[0]) for row in rows]
    texts += [written_passage(passage) for row in rows for passage in row.passages]
    train_tokenizer(texts, folder, vocab_size, "bpe", {})
    return Tokenizer.open(folder)


def probe_model(tokenizer: Tokenizer, copying_start: bool = True) -> ModelConfig:
    encoder = EncoderConfig(d_model=64, num_layers=2, num_heads=4, head_dim=16, ffw_dim=128)
    retrieval = RetrievalConfig(
        cross_attention_layers=(2, 3), encoder=encoder, share_embeddings=True, copying_start=copying_start
    )
    return ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=64,
        num_layers=3,
        num_heads=4,
        head_dim=16,
        ffw_dim=128,
        chunk_len=16,
        retrieval=retrieval,
        pad_id=tokenizer.pad_id,
        end_id=tokenizer.end_id,
    )


def probe_training(num_steps: int = 400) -> TrainingConfig:
    return TrainingConfig(
        seq_len=32,
        batch_size=32,
        num_steps=num_steps,
        num_neighbours=NUM_PASSAGES,
        learning_rate=3e-3,
        min_learning_rate=3e-4,
        warmup_steps=50,
        weight_decay=0.01,
        validate_every=100,
        validate_batches=8,
        checkpoint_every=100,
        precision="float32",
    )


def run_probe(
    path: Path,
    config: TrainingConfig | None = None,
    copying_start: bool = True,
    num_test: int = 200,
    progress: Progress = no_progress,
) -> Comparison:
    """Train a small RETRO on the probe into a run at `path`, and answer new
    questions in every way.
    """
    config = config or probe_training()
    # Temporary: the tokenizer is a pure function of the probe's text and can be made again.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "tokenizer"
        tokenizer = make_tokenizer(folder)
        # The run keeps a copy of the tokenizer, so it opens like any other run.
        artifact = _train_probe(path, config, tokenizer, copying_start, Origin(tokenizer=folder), progress)
    k = config.num_neighbours
    answerer = Answerer(load(artifact.path), tokenizer, own_passages(k), batch_size=50)
    return compare(answerer, make_questions(num_test, 3, k))


def _train_probe(
    path: Path,
    config: TrainingConfig,
    tokenizer: Tokenizer,
    copying_start: bool,
    origin: Origin,
    progress: Progress,
) -> Artifact:
    """Train on questions of which each is seen once."""
    model_config = probe_model(tokenizer, copying_start)
    form, k = Format(tokenizer, model_config.chunk_len), config.num_neighbours

    def batches_of(number: int, seed: int) -> QuestionBatches:
        return QuestionBatches(make_questions(number, seed, k), form, config.batch_size, k, config.seed)

    torch.manual_seed(config.seed)
    # Enough for every step: no question comes twice.
    batches = batches_of(config.num_steps * config.batch_size, 1)
    valid = batches_of(8 * config.batch_size, 2)
    model = make_model(model_config)
    inputs = {"tokenizer": tokenizer.fingerprint}
    return train(model, batches, config, path, inputs, valid, progress, origin=origin)
