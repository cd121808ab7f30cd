"""Every setting of a run: frozen, keyword-only dataclasses that validate themselves.

They need the standard library only, so that commands and recipes import fast.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from retro.errors import ConfigError


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """The bidirectional transformer that reads the retrieved neighbours."""

    d_model: int = 896
    """Width, d' in the paper."""
    num_layers: int = 2
    num_heads: int = 16
    head_dim: int = 64
    ffw_dim: int = 3584
    cross_attention_layers: tuple[int, ...] = (1,)
    """Layers that attend to the retrieving chunk, counted from 1; P_enc in the paper. Empty:
    no conditioning on the chunk."""

    def __post_init__(self) -> None:
        _require_positive(self, "d_model", "num_layers", "num_heads", "head_dim", "ffw_dim")
        _require_layers("encoder.cross_attention_layers", self.cross_attention_layers, self.num_layers)


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """What a RETRO has beyond its baseline: chunked cross-attention and the
    neighbour encoder."""

    cross_attention_layers: tuple[int, ...] = ()
    """Layers with chunked cross-attention, counted from 1; P in the paper. Empty: every third
    from 6 on; shallow models start earlier, with smaller steps."""
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    share_embeddings: bool = False
    """Whether the encoder uses the decoder's embedding matrix; needs equal widths."""
    cross_attention_positions: bool = True
    """Whether the two kinds of cross-attention add relative positional logits."""
    copying_start: bool = False
    """Whether the retrieval weights start as a circuit that copies from neighbours; see
    `model/start.py`."""
    quiet_start: bool = False
    """Whether cross-attention starts with zero output, so that untrained retrieval
    changes nothing."""
    retrieved: str = "both"
    """What is read: `both` [N, F], only the `neighbour` N, or only its `continuation` F."""

    def __post_init__(self) -> None:
        _require_one_of("retrieved", self.retrieved, "both", "neighbour", "continuation")
        width = self.encoder.d_model
        # Sines and cosines come in pairs.
        _require(width % 2 == 0, f"encoder.d_model is {width}; expected an even number")

    def places_read(self, chunk_len: int) -> slice:
        """The places of [N, F] that are read."""
        # N has the first chunk_len places, F the rest.
        first = chunk_len if self.retrieved == "continuation" else 0
        stop = chunk_len if self.retrieved == "neighbour" else 2 * chunk_len
        return slice(first, stop)


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder with retrieval or without: RETRO, or the plain transformer it
    is compared with."""

    vocab_size: int = 128_000
    d_model: int = 896
    num_layers: int = 12
    num_heads: int = 16
    head_dim: int = 64
    ffw_dim: int = 3584
    chunk_len: int = 64
    """Tokens in a chunk, m in the paper."""
    retrieval: RetrievalConfig | None = None
    """None: the baseline."""
    dropout: float = 0.0
    pad_id: int = 0
    """The token that is masked out of every attention."""
    end_id: int | None = None
    """The token that closes a document, if known."""

    def __post_init__(self) -> None:
        _require_positive(
            self, "vocab_size", "d_model", "num_layers", "num_heads", "head_dim", "ffw_dim", "chunk_len"
        )
        _require(
            self.d_model % 2 == 0,
            f"d_model is {self.d_model}; expected an even number, as positions are pairs of sine and cosine",
        )
        _require(
            0 <= self.pad_id < self.vocab_size,
            f"pad_id is {self.pad_id}; expected it within the vocabulary of {self.vocab_size}",
        )
        _require(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}; expected 0 ≤ dropout < 1")
        if self.retrieval is not None:
            self._settle(self.retrieval)

    def _settle(self, retrieval: RetrievalConfig) -> None:
        """Choose the layers that were left open, and check what depends on the decoder."""
        # Only the decoder's depth tells where the default layers are.
        layers = retrieval.cross_attention_layers or cross_attention_places(self.num_layers)
        _require_layers("cross_attention_layers", layers, self.num_layers)
        width = retrieval.encoder.d_model
        _require(
            not retrieval.share_embeddings or width == self.d_model,
            f"share_embeddings needs equal widths; found encoder.d_model {width} and d_model {self.d_model}",
        )
        # The dataclass is frozen. The layers chosen here are stored, so that a record holds
        # them even if the rule for choosing changes.
        object.__setattr__(self, "retrieval", dataclasses.replace(retrieval, cross_attention_layers=layers))

    @property
    def uses_retrieval(self) -> bool:
        """Whether the model has chunked cross-attention at all."""
        return self.retrieval is not None

    @property
    def cross_attention_layers(self) -> tuple[int, ...]:
        """Layers with chunked cross-attention, counted from 1; none in a baseline."""
        return self.retrieval.cross_attention_layers if self.retrieval is not None else ()

    @property
    def retrieved_len(self) -> int:
        """Tokens of a neighbour and its continuation, r in the paper."""
        return 2 * self.chunk_len

    def baseline(self) -> "ModelConfig":
        """The same decoder without retrieval, the same for every RETRO built on that decoder."""
        return dataclasses.replace(self, retrieval=None)

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Read JSON from before retrieval had its own config."""
        # Today's JSON has this field inside `retrieval`, not here.
        if "cross_attention_layers" not in values:
            return values
        names = [entry.name for entry in dataclasses.fields(RetrievalConfig)]
        moved = {name: values[name] for name in names if name in values}
        kept = {name: value for name, value in values.items() if name not in moved}
        # A baseline had no cross-attention layers.
        return {**kept, "retrieval": moved if moved["cross_attention_layers"] else None}


@dataclass(frozen=True, kw_only=True)
class FineTuningConfig:
    """The settings of fine-tuning on questions, besides its schedule."""

    dropout: float = 0.1
    """In the decoder only, as in the paper, which does not give its rate."""
    frozen: bool = False
    """Train only cross-attention and encoder; the other weights stay as they are."""
    closed_book: bool = False
    """Show no passages."""

    def __post_init__(self) -> None:
        _require(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}; expected 0 ≤ dropout < 1")
        _require(
            not (self.frozen and self.closed_book),
            "frozen and closed book leave nothing to train; expected one of them at most",
        )


def cross_attention_places(num_layers: int) -> tuple[int, ...]:
    """Every third layer from 6 on, as in the paper.

    A shallower model starts at its middle, and includes its last layer if it can.
    """
    # Half the depth, rounded up.
    first = min(6, -(-num_layers // 2))
    # A shallow model has no room for steps of three: its step takes it from the first
    # to the last layer.
    return tuple(range(first, num_layers + 1, max(1, min(3, num_layers - first))))


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Which text is used, how it is tokenised, and how its documents are split."""

    sources: tuple[str, ...] = ()
    """What is read if a command names no source."""
    tokenizer: str = ""
    """The folder or hub id of a Hugging Face tokenizer, or the tokenizer of a run; empty: a
    SentencePiece tokenizer is trained on the corpus."""
    vocab_size: int = 2048
    """Vocabulary of the tokenizer, if one is trained."""
    tokenizer_model: str = "bpe"
    """`bpe` or `unigram`."""
    tokenizer_sample_bytes: int = 32 << 20
    """At most this much text is used to train the tokenizer."""
    tokenizer_weights: dict[str, float] = field(default_factory=dict)
    """Each source's share of that text; empty: its share of the corpus."""
    split_seed: int = 0
    valid_fraction: float = 0.02
    test_fraction: float = 0.05
    max_document_bytes: int = 0
    """Longer documents are left out; 0 keeps all."""
    sample_fraction: float = 1.0
    """Part of the documents that is used, chosen by their ids."""
    decontaminate_ngram: int = 13
    decontaminate_threshold: float = 0.8
    """Training documents at or above this Jaccard similarity with a held-out
    document are removed."""

    def __post_init__(self) -> None:
        _require_positive(self, "vocab_size", "tokenizer_sample_bytes", "decontaminate_ngram")
        _require_one_of("tokenizer_model", self.tokenizer_model, "bpe", "unigram")
        for name in ("valid_fraction", "test_fraction"):
            _require(
                0.0 <= getattr(self, name) < 1.0, f"{name} is {getattr(self, name)}; expected 0 ≤ {name} < 1"
            )
        _require(
            self.valid_fraction + self.test_fraction < 1.0,
            "valid_fraction and test_fraction leave no training documents",
        )
        _require(
            0.0 < self.sample_fraction <= 1.0,
            f"sample_fraction is {self.sample_fraction}; expected 0 < sample_fraction ≤ 1",
        )
        _require(0.0 < self.decontaminate_threshold <= 1.0, "decontaminate_threshold must lie in (0, 1]")


@dataclass(frozen=True, kw_only=True)
class DatastoreConfig:
    """How keys and index are made, and how many neighbours are saved."""

    embedder: str = "minilm"
    """What makes the keys: a name in the catalogue, or the folder or hub id of a
    BERT-like model."""
    embedder_precision: str = "float32"
    """`float32`; `bfloat16`, twice as fast on hardware that has it, with nearly the same
    neighbours; or `auto`."""
    chunk_len: int = 64
    num_neighbours: int = 20
    """Neighbours saved for each chunk, K; training and evaluation use the first k of them."""
    index: str = "auto"
    """`auto` chooses by the number of keys; or `exact`, `bm25`, `hybrid`, `scann`, or a FAISS
    factory string such as HNSW24 or IVF1024,Flat."""
    exact_below: int = 50_000
    """With `auto`, fewer keys than these are searched exactly."""
    target_recall: float = 0.95
    """Part of the true 10 nearest that a search is tuned to find."""
    segment_chunks: int = 1_000_000
    """The most chunks in a segment, which building holds in memory at once."""

    def __post_init__(self) -> None:
        _require_positive(self, "chunk_len", "num_neighbours", "segment_chunks")
        _require_one_of("embedder_precision", self.embedder_precision, "auto", "float32", "bfloat16")
        _require(
            0.0 < self.target_recall <= 1.0,
            f"target_recall is {self.target_recall}; expected 0 < target_recall ≤ 1",
        )

    @staticmethod
    def upgrade(values: dict[str, Any]) -> dict[str, Any]:
        """Read JSON from when the embedder was called an encoder."""
        names = {"encoder": "embedder", "encoder_precision": "embedder_precision"}
        return {names.get(name, name): value for name, value in values.items()}


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
    learning_rate: float = 2e-4
    min_learning_rate: float = 2e-5
    warmup_start: float = 1e-7
    """The learning rate of the first step."""
    warmup_steps: int = 750
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
        _require_positive(self, "seq_len", "batch_size", "accumulate", "num_steps", "num_neighbours")
        _require_positive(self, "log_every", "validate_every", "validate_batches", "sample_tokens")
        _require_positive(self, "checkpoint_every", "keep_checkpoints")
        _require(
            self.batch_size % self.accumulate == 0,
            f"accumulate is {self.accumulate}; expected a divisor of batch_size, {self.batch_size}",
        )
        _require_one_of("precision", self.precision, "auto", "float32", "bfloat16")
        _require_one_of("final", self.final, "last", "best")
        _require(self.learning_rate > 0, f"learning_rate is {self.learning_rate}; expected more than 0")
        _require(
            0 <= self.warmup_steps <= self.num_steps,
            f"warmup_steps is {self.warmup_steps}; expected at most num_steps, {self.num_steps}",
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

    def __post_init__(self) -> None:
        _require_positive(self, "window", "stride", "batch_size", "leakage_neighbours")
        _require(
            self.stride <= self.window, f"stride is {self.stride}; expected at most the window, {self.window}"
        )
        _require(
            all(k >= 1 for k in self.num_neighbours),
            f"num_neighbours is {', '.join(map(str, self.num_neighbours))}; "
            "expected each to be at least 1, as scoring without retrieval is always done",
        )

    def with_overlap(self, proportion: float, chunk_len: int) -> "EvaluationConfig":
        """The same window with a stride that gives every token this proportion of it as context.

        The paper's table uses 0.875. Tokens at the start of a document have less.
        """
        _require(
            0.0 <= proportion < 1.0,
            f"the overlapping proportion is {proportion}; expected 0 ≤ proportion < 1",
        )
        # Rounded, as 1 − 0.9 is not quite 0.1.
        stride = round((1.0 - proportion) * self.window, 6)
        _require(
            stride > 0 and stride % chunk_len == 0,
            f"an overlapping proportion of {proportion} moves a window of {self.window} "
            f"by {stride:g} tokens; expected a multiple of {chunk_len}",
        )
        return dataclasses.replace(self, stride=int(stride))


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
        _require_positive(self, "num_neighbours", "cache_len")
        _require(
            self.index not in ("bm25", "hybrid"),
            f"index is {self.index!r}; expected one over keys, as tokens of a memory have no words",
        )
        _require(
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

    def __post_init__(self) -> None:
        chunk_len = self.model.chunk_len
        _require(
            self.datastore.chunk_len == chunk_len,
            f"datastore.chunk_len is {self.datastore.chunk_len}; expected the model's, {chunk_len}",
        )
        # Sequences and windows are cut on the chunk grid.
        for name, value in (
            ("training.seq_len", self.training.seq_len),
            ("evaluation.window", self.evaluation.window),
            ("evaluation.stride", self.evaluation.stride),
        ):
            _require(
                value % chunk_len == 0, f"{name} is {value}; expected a multiple of chunk_len, {chunk_len}"
            )


def _require_positive(config: Any, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value > 0, f"{name} is {value}; expected a positive number")


def _require_one_of(name: str, value: str, *choices: str) -> None:
    _require(value in choices, f"{name} is {value!r}; expected {' or '.join(choices)}")


def _require_layers(name: str, layers: tuple[int, ...], depth: int) -> None:
    _require(
        # Rising, and no layer twice.
        list(layers) == sorted(set(layers)) and all(1 <= layer <= depth for layer in layers),
        f"{name} is {list(layers)}; expected rising layer numbers between 1 and the depth, {depth}",
    )
