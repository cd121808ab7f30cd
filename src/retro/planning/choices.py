"""What follows from the size of a text, the minutes that are given and the speed of the machine.

Every function here is arithmetic on what was counted and measured; none of them reads or times anything.
"""

import math
from dataclasses import dataclass

import numpy as np

from retro.config import EncoderConfig, EvaluationConfig, ModelConfig, RetrievalConfig, TrainingConfig
from retro.planning.speed import TokenTimes
from retro.planning.survey import Survey

EMBEDDING_SHARE = 0.2
"""The most of the minutes that a thorough embedder may take; a text for which it takes longer gets a fast
one."""
PREPARING_SHARE = 0.4
"""The most of the minutes for reading, keys, index and neighbours; of a larger text only a part is used."""
EVALUATION_SHARE = 0.12
CLOSING_SECONDS = 10.0
"""For the sample, the report, and opening what was made."""
SPARE = 0.92
"""The part of the time left that is planned with; the rest is for what was not foreseen."""
BYTES_PER_TOKEN = 3.4
"""A first guess, until the text is cut into tokens."""
MAX_EPOCHS = 12
"""Reading the same text more often teaches a small model to know it by heart."""
LEAST_STEPS = 40
LEAST_STEP_TOKENS = 512
"""The shortest training: fewer and smaller steps teach nothing."""
PRECISION = "auto"
MANY_STEPS = 500
"""Batches are made smaller until there are so many."""
TOKENS_PER_WEIGHT = 3.0
"""A larger model is taken only if it reads so many tokens for each of its weights."""
FEWEST_TOKENS_PER_WEIGHT = 0.1
"""A model that reads fewer gives way to a smaller one."""
SIZES = ((64, 2), (128, 4), (256, 6), (384, 8), (512, 10))
"""Width and layers of the models to choose from."""
FIRST_SIZE = 1
"""The size that is tried first."""
STEP_SIZES = ((256, 2), (256, 4), (512, 4), (512, 8), (512, 16), (512, 32))
"""Length and number of the sequences in a batch."""
RETRIEVING = 0.7
"""Share of the text that should come after a document's first chunk."""
FEW_TEST_DOCUMENTS = 30
VERY_FEW_TEST_DOCUMENTS = 8
MANY_TEST_DOCUMENTS = 1000
"""Over more documents an interval hardly narrows."""
VALID_DOCUMENTS = 10
VALID_BYTES = 60_000


@dataclass(frozen=True)
class Splits:
    """Which part of the documents is held out, and how much that is."""

    test_fraction: float
    valid_fraction: float
    test_documents: int
    test_bytes: int
    valid_documents: int


def vocabulary(num_bytes: int, seconds: float, times: TokenTimes) -> int:
    """A power of two near the square root of the bytes that training will read."""
    # Half of the time goes to training; what is never read needs no token of its own.
    readable = 0.5 * seconds / times.both * BYTES_PER_TOKEN
    root = math.sqrt(min(num_bytes, readable))
    return int(2 ** min(15, max(10, round(math.log2(root)))))


def num_chunks(survey: Survey) -> float:
    """About how many chunks the text has."""
    return survey.num_bytes / (BYTES_PER_TOKEN * chunk_len(survey))


def chunk_len(survey: Survey) -> int:
    """64 as in the paper, or less where documents are so short that little text can retrieve."""
    return next((size for size in (64, 32) if retrieving(survey, size) >= RETRIEVING), 16)


def retrieving(survey: Survey, chunk_len: int) -> float:
    """Share of the text that comes after the first chunk of its document, and so has neighbours."""
    after = np.maximum(survey.sizes - chunk_len * BYTES_PER_TOKEN, 0)
    return float(after.sum() / survey.num_bytes)


def splits(survey: Survey, seconds: float, times: TokenTimes, trained_with: int) -> Splits:
    """Hold out enough documents to measure on, and not many more than can be scored in time.

    A split is where the draws of the documents are cut, so that it holds exactly the documents counted here.
    """
    number = survey.num_documents
    per_token = scoring_seconds((1, 2, 4), 1, times, trained_with)
    scorable = EVALUATION_SHARE * seconds / per_token * BYTES_PER_TOKEN
    # An interval over few documents tells little, so that twice the time is spent on some tens of them; over
    # very few it tells nothing, whatever they cost.
    few = max(2, min(FEW_TEST_DOCUMENTS, number // 8))
    num_costly = int(np.searchsorted(np.cumsum(survey.sizes), 2 * scorable))
    num_test = _take(
        survey.sizes,
        num_bytes=min(0.1 * survey.num_bytes, scorable),
        least=max(min(few, VERY_FEW_TEST_DOCUMENTS), min(few, num_costly)),
        most=max(2, min(MANY_TEST_DOCUMENTS, number // 4)),
    )
    num_valid = _take(
        survey.sizes[num_test:],
        num_bytes=min(VALID_BYTES, 0.05 * survey.num_bytes),
        least=max(1, min(VALID_DOCUMENTS, number // 16)),
        most=max(1, number // 8),
    )
    test_edge = survey.edge(num_test)
    valid_edge = survey.edge(num_test + num_valid)
    return Splits(
        test_fraction=test_edge,
        valid_fraction=round(valid_edge - test_edge, 9),
        test_documents=num_test,
        test_bytes=int(survey.sizes[:num_test].sum()),
        valid_documents=num_valid,
    )


def _take(sizes: np.ndarray, num_bytes: float, least: int, most: int) -> int:
    """How many of the first documents it takes to have so many bytes, within bounds."""
    wanted = int(np.searchsorted(np.cumsum(sizes), num_bytes)) + 1
    return min(max(wanted, least), most)


def model(size: int, vocab_size: int, chunk_len: int) -> ModelConfig:
    """One of `SIZES`, built as the demo's model is: it begins by copying from its neighbours."""
    width, num_layers = SIZES[size]
    head_dim = 32 if width <= 128 else 64
    num_heads = width // head_dim
    encoder = EncoderConfig(
        d_model=width, num_layers=1, num_heads=num_heads, head_dim=head_dim, ffw_dim=2 * width
    )
    return ModelConfig(
        vocab_size=vocab_size,
        d_model=width,
        num_layers=num_layers,
        num_heads=num_heads,
        head_dim=head_dim,
        ffw_dim=4 * width,
        chunk_len=chunk_len,
        retrieval=RetrievalConfig(
            cross_attention_layers=(max(1, num_layers // 2), num_layers),
            encoder=encoder,
            share_embeddings=True,
            copying_start=True,
        ),
    )


def num_weights(size: int) -> int:
    """About how many weights the decoder of a size has, embeddings aside."""
    width, num_layers = SIZES[size]
    return num_layers * 12 * width**2


@dataclass(frozen=True)
class Amount:
    """How much a model can be trained in the time there is."""

    tokens: int
    """Tokens of training, with the same batches for baseline and RETRO."""
    epochs: float
    capped: bool
    """Whether there was time for more epochs than are good."""

    def suits(self, size: int) -> bool:
        """Whether a model of this size reads enough tokens to be worth its weights."""
        return self.tokens >= TOKENS_PER_WEIGHT * num_weights(size)

    def is_worth_it(self, size: int) -> bool:
        """Whether it reads at least so much that a smaller one would not do better."""
        return self.tokens >= FEWEST_TOKENS_PER_WEIGHT * num_weights(size)


def amount(seconds: float, times: TokenTimes, epoch_tokens: int) -> Amount:
    """What can be trained in so many seconds, validations included."""
    # A validation is two forward passes of RETRO and one of the baseline, about half of a step of both.
    read = seconds / times.both
    affordable = max(0.0, read - _validations(read) * _validation_tokens(read) / 2)
    tokens = min(affordable, MAX_EPOCHS * epoch_tokens)
    return Amount(int(tokens), tokens / epoch_tokens, affordable > tokens)


def _validations(tokens: float) -> int:
    return 10 if tokens >= 400_000 else 5


def _validation_tokens(tokens: float) -> float:
    return max(4096, 0.01 * tokens)


def scoring_seconds(ks: tuple[int, ...], test_tokens: int, times: TokenTimes, trained_with: int) -> float:
    """Seconds that the evaluations of baseline and RETRO take; half-overlapping windows read all twice."""
    return 2 * test_tokens * sum(times.scoring(k, trained_with) for k in (0, 0, *ks))


def evaluation(
    seconds: float, test_tokens: int, times: TokenTimes, trained_with: int, window: int
) -> EvaluationConfig:
    """As many numbers of neighbours as can be scored in their share of the time."""
    ks: tuple[int, ...]
    for ks in ((1, 2, 4, 10), (1, 2, 4), (1, 2)):
        if scoring_seconds(ks, test_tokens, times, trained_with) <= EVALUATION_SHARE * seconds:
            break
    else:
        ks = (trained_with,)
    return EvaluationConfig(window=window, stride=window // 2, num_neighbours=ks)


def training(amount: Amount, size: int, precision: str = PRECISION) -> TrainingConfig:
    """The schedule for an amount of tokens."""
    seq_len, batch_size = next(
        (shape for shape in reversed(STEP_SIZES) if amount.tokens // math.prod(shape) >= MANY_STEPS),
        STEP_SIZES[0],
    )
    step_tokens = seq_len * batch_size
    num_steps = max(LEAST_STEPS, amount.tokens // step_tokens)
    every = max(1, num_steps // _validations(amount.tokens))
    rate = 3e-3 * math.sqrt(128 / SIZES[size][0])
    return TrainingConfig(
        seq_len=seq_len,
        batch_size=batch_size,
        num_steps=num_steps,
        learning_rate=rate,
        min_learning_rate=rate / 20,
        warmup_steps=num_steps // 10,
        precision=precision,
        validate_every=every,
        validate_batches=math.ceil(_validation_tokens(amount.tokens) / step_tokens),
        checkpoint_every=every,
        # A small text may be learned by heart; then an earlier checkpoint is better.
        final="best",
    )
