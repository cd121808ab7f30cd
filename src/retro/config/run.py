"""What is done with a model: training, fine-tuning, evaluation, and a named run of everything."""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from retro.config.as_json import to_dict
from retro.config.checks import (
    require,
    require_between,
    require_one_of,
    require_positive,
    require_seed,
    require_utf8,
)
from retro.config.data import CorpusConfig, DatastoreConfig
from retro.config.model import ModelConfig


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """One training run."""

    seq_len: int = 512
    batch_size: int = 8
    """Sequences in a step, over all processes and parts together."""
    accumulate: int = 1
    """Parts that a batch is computed in, one after the other, to save memory; the step
    stays the same."""
    num_steps: int = 1000
    num_neighbours: int = 2
    """Neighbours of each chunk that the model sees, k in the paper."""
    leave_out: float = 0.0
    """Part of the chunks, drawn anew in every step, that read no neighbours, so that the model learns to do
    without as well."""
    vary_neighbours: bool = False
    """Whether each chunk reads between one and all of its neighbours, drawn anew in every step, so that the
    model knows several k."""
    longest_run: int = 0
    """Neighbours that share a longer run of tokens with the text that reads them, the next chunk, are left
    out of training; 0: none are."""
    learning_rate: float = 2e-4
    min_learning_rate: float = 2e-5
    warmup_start: float = 1e-7
    """The learning rate of the first step."""
    warmup_steps: int = 750
    schedule_steps: int = 0
    """The step at which the learning rate reaches its minimum, where it then stays; 0: the last one. A run
    that may be extended later can have the schedule of the whole from the beginning."""
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip_norm: float = 1.0
    mixture: dict[str, float] = field(default_factory=dict)
    """Sampling weights of the sources; empty: every document once an epoch."""
    precision: str = "auto"
    """`float32`, `bfloat16` for the matrix products, or `auto`: bfloat16 where the
    hardware has it."""
    activation_checkpointing: bool = False
    """Whether the backward pass recomputes the insides of attention and feed-forward layers,
    to save memory."""
    compile: bool = False
    """Whether torch.compile is applied."""
    seed: int = 0
    log_every: int = 10
    tensorboard: bool = False
    """Whether metrics are also written for TensorBoard."""
    validate_every: int = 100
    validate_batches: int = 4
    validate_first: bool = False
    """Whether to validate before the first step, too: what is fitted to a pretrained model helps at once."""
    sample_every: int = 0
    """Steps between two samples from the model in training; 0: none."""
    sample_prompt: str = "The "
    sample_tokens: int = 64
    checkpoint_every: int = 500
    keep_checkpoints: int = 2
    """How many of the last checkpoints are kept, besides the one with the lowest
    validation loss."""
    final: str = "last"
    """Which weights the finished run holds: those of the `last` step, or of the checkpoint
    with the `best` validation loss."""

    def __post_init__(self) -> None:
        require_positive(self, "seq_len", "batch_size", "accumulate", "num_steps", "num_neighbours")
        require_positive(self, "log_every", "validate_every", "validate_batches", "sample_tokens")
        require_positive(self, "checkpoint_every", "keep_checkpoints")
        require(0.0 <= self.leave_out < 1.0, f"leave_out is {self.leave_out}; expected 0 ≤ leave_out < 1")
        require(
            self.longest_run >= 0,
            f"longest_run is {self.longest_run}; expected a number of tokens, or 0 for any",
        )
        require(
            self.batch_size % self.accumulate == 0,
            f"accumulate is {self.accumulate}; expected a divisor of batch_size, {self.batch_size}",
        )
        require_one_of("precision", self.precision, "auto", "float32", "bfloat16")
        require_one_of("final", self.final, "last", "best")
        require(self.schedule_steps >= 0, f"schedule_steps is {self.schedule_steps}; expected at least 0")
        require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; expected more than 0")
        require_between(self, 0.0, math.inf, "learning_rate", "min_learning_rate", "warmup_start")
        require_between(self, 0.0, math.inf, "weight_decay", "clip_norm")
        require_between(self, 0.0, 1.0, "beta1", "beta2")
        require_seed(self, "seed")
        require_utf8("sample_prompt", self.sample_prompt)
        require(
            0 <= self.warmup_steps <= self.num_steps,
            f"warmup_steps is {self.warmup_steps}; expected at most num_steps, {self.num_steps}",
        )


PASSAGES = ("none", "gold", "shuffled", "dense", "bm25", "hybrid")
SEARCHED = ("dense", "bm25", "hybrid")
"""Those of the passages above that are searched for."""
READINGS = ("neighbours", "prompt", "fused")


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """The settings of fine-tuning on questions, besides its schedule."""

    dropout: float | None = None
    """In the decoder only, as in the paper, which does not give its rate. None: 0.1 for a model of
    retro's own, and 0 for what is fitted to a base, which stays as it is."""
    frozen: bool = False
    """Train only cross-attention and encoder; the other weights stay as they are."""
    closed_book: bool = False
    """Show no passages."""
    prepended: bool = False
    """Show the passages in the prompt, in front of the question, and not as neighbours; a baseline can learn
    it as well."""

    def __post_init__(self) -> None:
        require(
            self.dropout is None or 0.0 <= self.dropout < 1.0,
            f"dropout is {self.dropout}; expected 0 ≤ dropout < 1",
        )
        require(
            not (self.frozen and self.closed_book),
            "frozen and closed book leave nothing to train; expected one of them at most",
        )
        require(
            not (self.prepended and (self.frozen or self.closed_book)),
            "prepended passages are read by the decoder alone; "
            "expected neither frozen nor closed book with them",
        )


@dataclass(frozen=True, kw_only=True)
class ShownConfig:
    """Which passages are shown with a question in fine-tuning."""

    search: str = "none"
    """Passages that the workspace's datastore has for the question (`dense`, `bm25`, `hybrid`) come beside
    its own; `none`: its own alone. Documents that the workspace holds out are never among them."""
    as_found: bool = False
    """Show the first that were found, whatever they hold, and not the question's own. Where none of them
    holds the answer, saying nothing is what is learned. By default the question's own passage is among those
    that are shown, and no other holds the answer."""
    without_answer: float = 0.0
    """Part of the questions that are shown only passages without the answer, and learned to be answered with
    nothing."""

    def __post_init__(self) -> None:
        require_one_of("search", self.search, "none", *SEARCHED)
        require(
            0.0 <= self.without_answer < 1.0,
            f"without_answer is {self.without_answer}; expected 0 ≤ without_answer < 1",
        )
        require(
            self.search != "none" or not (self.as_found or self.without_answer),
            "as_found and without_answer show what was searched for; expected a search with them: "
            f"--search {' or '.join(SEARCHED)}",
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Sliding-window scoring of whole documents."""

    window: int = 2048
    stride: int = 1024
    """Each token is scored once, with at least `window - stride` tokens of context if the
    document has them."""
    batch_size: int = 8
    num_neighbours: tuple[int, ...] = (2,)
    """The values of k to score, besides no retrieval; at most as many as are saved
    for each chunk."""
    leakage_neighbours: int = 10
    """How many neighbours are compared with a chunk to tell how much of it was seen before."""
    precision: str = "float32"
    """`float32`; `bfloat16` for the matrix products, faster and a little less exact; or `auto`:
    bfloat16 where the hardware has it. Compare only what was scored in the same."""

    def __post_init__(self) -> None:
        require_positive(self, "window", "stride", "batch_size", "leakage_neighbours")
        require_one_of("precision", self.precision, "auto", "float32", "bfloat16")
        require(
            self.stride <= self.window, f"stride is {self.stride}; expected at most the window, {self.window}"
        )
        require(
            all(k >= 1 for k in self.num_neighbours),
            f"num_neighbours is {', '.join(map(str, self.num_neighbours))}; "
            "expected each to be at least 1, as scoring without retrieval is always done",
        )

    def settings(self) -> dict[str, Any]:
        """What tells one evaluation from another, as JSON; what came later is named only where it is used."""
        settings = to_dict(self)
        if self.precision == "float32":
            del settings["precision"]
        return settings

    def with_overlap(self, proportion: float, chunk_len: int) -> "EvaluationConfig":
        """The same window with a stride that gives every token this proportion of it as context.

        The paper's table uses 0.875. Tokens at the start of a document have less.
        """
        require(
            0.0 <= proportion < 1.0,
            f"the overlapping proportion is {proportion}; expected 0 ≤ proportion < 1",
        )
        # Rounded, as 1 − 0.9 is not quite 0.1.
        stride = round((1.0 - proportion) * self.window, 6)
        require(
            stride > 0 and stride % chunk_len == 0,
            f"an overlapping proportion of {proportion} moves a window of {self.window} "
            f"by {stride:g} tokens; expected a multiple of {chunk_len}",
        )
        return dataclasses.replace(self, stride=int(stride))


@dataclass(frozen=True, kw_only=True)
class QuestionsConfig:
    """Answering questions in several ways: which passages, how many, and how they are read."""

    passages: tuple[str, ...] = PASSAGES
    """`none` answers closed book; `gold` are the question's own, `shuffled` those of another question;
    `dense`, `bm25` and `hybrid` (both, by reciprocal rank fusion) are searched for in the datastore."""
    readings: tuple[str, ...] = ("neighbours",)
    """`neighbours` as the run reads neighbours, `prompt` with all passages before the question, `fused`
    with each by itself and all together from then on, which needs a fitted base."""
    num_passages: tuple[int, ...] = (1, 5, 20)
    """How many of those that are searched for are read."""
    num_questions: int = 0
    """Questions that are answered, chosen by their text; 0: all."""
    num_examples: int = 0
    """Questions with their answers before every question, for a model that was never taught to answer; with
    their passages, unless it answers closed book."""
    passage_len: int = 512
    """Tokens of a passage in a prompt; one that is read as a neighbour has as many as those."""
    max_tokens: int = 32
    """Tokens of an answer at most."""
    batch_size: int = 8
    """Questions that are answered together."""
    precision: str = "float32"
    """`float32`; `bfloat16` for the matrix products, faster where passages are long and a little less exact;
    or `auto`: bfloat16 where the hardware has it. Compare only what was answered in the same."""

    def __post_init__(self) -> None:
        require_positive(self, "max_tokens", "batch_size")
        require_one_of("precision", self.precision, "auto", "float32", "bfloat16")
        for name, choices in (("passages", PASSAGES), ("readings", READINGS)):
            require(bool(getattr(self, name)), f"{name} is empty; expected some of {', '.join(choices)}")
            for value in getattr(self, name):
                require_one_of(name, value, *choices)
        require(
            all(n >= 1 for n in self.num_passages) and bool(self.num_passages),
            f"num_passages is {', '.join(map(str, self.num_passages)) or 'empty'}; "
            "expected numbers of passages, as answering without any is a way of its own",
        )
        require(
            self.num_questions >= 0, f"num_questions is {self.num_questions}; expected a number, or 0 for all"
        )
        require_between(self, 0, 1 << 10, "num_examples")
        require_between(self, 2, 1 << 20, "passage_len")


@dataclass(frozen=True, kw_only=True)
class KnnConfig:
    """kNN-LM and the continuous cache, on top of a baseline."""

    num_neighbours: int = 10
    """How many keys of the memory vote on each token; the paper uses 10."""
    cache_len: int = 2048
    """How many tokens of the same document the continuous cache looks back on."""
    index: str = "auto"
    """`auto` chooses by the number of keys; or `exact`, or a FAISS factory string such
    as HNSW24 or IVF1024,SQfp16."""
    exact_below: int = 50_000
    """With `auto`, fewer keys than these are searched exactly."""
    target_recall: float = 0.98
    """Part of the true 10 nearest that a search is tuned to find. It is tuned on the memory's
    own keys; test queries are farther away."""

    def __post_init__(self) -> None:
        require_positive(self, "num_neighbours", "cache_len")
        require(
            self.index not in ("bm25", "hybrid"),
            f"index is {self.index!r}; expected one over keys, as tokens of a memory have no words",
        )
        require(
            0.0 < self.target_recall <= 1.0,
            f"target_recall is {self.target_recall}; expected 0 < target_recall ≤ 1",
        )


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A named run: everything from text to a trained model."""

    name: str
    model: ModelConfig
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    datastore: DatastoreConfig = field(default_factory=DatastoreConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    start: str = ""
    """The fitted model that a fit begins with, by its name or folder. Empty: with the base as it is."""

    def __post_init__(self) -> None:
        chunk_len = self.model.chunk_len
        require(
            self.datastore.chunk_len == chunk_len,
            f"datastore.chunk_len is {self.datastore.chunk_len}; expected the model's, {chunk_len}",
        )
        # Sequences and windows are cut on the chunk grid.
        for name, value in (
            ("training.seq_len", self.training.seq_len),
            ("evaluation.window", self.evaluation.window),
            ("evaluation.stride", self.evaluation.stride),
        ):
            require(
                value % chunk_len == 0, f"{name} is {value}; expected a multiple of chunk_len, {chunk_len}"
            )
