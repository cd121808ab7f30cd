"""A model: the decoder, and what it has for retrieval."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from retro.config.checks import require, require_layers, require_one_of, require_positive

DEEPEST_MATCH = 4
"""The deepest layer that a pointer matches states of by default."""


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
        require_positive(self, "d_model", "num_layers", "num_heads", "head_dim", "ffw_dim")
        require_layers("encoder.cross_attention_layers", self.cross_attention_layers, self.num_layers)


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
    pointer: bool = False
    """Whether the neighbours' tokens also vote for the next one, weighed by a learned gate; see
    `model/pointer.py`."""
    pointer_layer: int = 0
    """The decoder layer after whose self-attention states are matched, counted from 1, at most the first with
    cross-attention: up to there, text and neighbours are read alike. 0: that one, or the fourth if it is
    deeper, as neighbours are read through all layers below."""

    def __post_init__(self) -> None:
        require_one_of("retrieved", self.retrieved, "both", "neighbour", "continuation")
        require(
            self.pointer or not self.pointer_layer,
            f"pointer_layer is {self.pointer_layer} and there is no pointer; expected 0, or a pointer",
        )
        require(
            not (self.pointer and self.quiet_start),
            "quiet_start and pointer are both set; expected one of them, as an untrained pointer votes",
        )
        width = self.encoder.d_model
        # Sines and cosines come in pairs.
        require(width % 2 == 0, f"encoder.d_model is {width}; expected an even number")

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
        require_positive(
            self, "vocab_size", "d_model", "num_layers", "num_heads", "head_dim", "ffw_dim", "chunk_len"
        )
        require(
            self.d_model % 2 == 0,
            f"d_model is {self.d_model}; expected an even number, as positions are pairs of sine and cosine",
        )
        require(
            0 <= self.pad_id < self.vocab_size,
            f"pad_id is {self.pad_id}; expected it within the vocabulary of {self.vocab_size}",
        )
        require(0.0 <= self.dropout < 1.0, f"dropout is {self.dropout}; expected 0 ≤ dropout < 1")
        if self.retrieval is not None:
            self._settle(self.retrieval)

    def _settle(self, retrieval: RetrievalConfig) -> None:
        """Choose the layers that were left open, and check what depends on the decoder."""
        # Only the decoder's depth tells where the default layers are.
        layers = retrieval.cross_attention_layers or cross_attention_places(self.num_layers)
        require_layers("cross_attention_layers", layers, self.num_layers)
        width = retrieval.encoder.d_model
        require(
            not retrieval.share_embeddings or width == self.d_model,
            f"share_embeddings needs equal widths; found encoder.d_model {width} and d_model {self.d_model}",
        )
        matched = retrieval.pointer_layer
        if retrieval.pointer:
            matched = matched or min(DEEPEST_MATCH, *layers)
            require(
                1 <= matched <= min(layers),
                f"pointer_layer is {matched}; expected a layer from 1 to {min(layers)}, the first with "
                "cross-attention",
            )
        # The dataclass is frozen. The layers chosen here are stored, so that a record holds
        # them even if the rule for choosing changes.
        settled = dataclasses.replace(retrieval, cross_attention_layers=layers, pointer_layer=matched)
        object.__setattr__(self, "retrieval", settled)

    @property
    def uses_retrieval(self) -> bool:
        """Whether the model has chunked cross-attention at all."""
        return self.retrieval is not None

    @property
    def cross_attention_layers(self) -> tuple[int, ...]:
        """Layers with chunked cross-attention, counted from 1; none in a baseline."""
        return self.retrieval.cross_attention_layers if self.retrieval is not None else ()

    @property
    def pointer_layer(self) -> int:
        """The layer whose states a pointer matches, counted from 1; 0 without one."""
        return self.retrieval.pointer_layer if self.retrieval is not None else 0

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


def cross_attention_places(num_layers: int) -> tuple[int, ...]:
    """Every third layer from 6 on, as in the paper.

    A shallower model starts at its middle, and includes its last layer if it can.
    """
    # Half the depth, rounded up.
    first = min(6, -(-num_layers // 2))
    # A shallow model has no room for steps of three: its step takes it from the first
    # to the last layer.
    return tuple(range(first, num_layers + 1, max(1, min(3, num_layers - first))))
