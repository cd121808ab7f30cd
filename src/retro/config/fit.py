"""What a pretrained model gets when it is RETROfitted."""

import dataclasses
from dataclasses import dataclass, field

from retro.config.checks import require, require_layers, require_one_of, require_positive
from retro.config.model import EncoderConfig, cross_attention_places


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How a frozen base reads its neighbours, and how they vote for what comes next."""

    chunk_len: int = 64
    """Tokens in a chunk, m in the paper."""
    reading: str = "attention"
    """`attention`: the base's own self-attention reads the neighbours beside the text, by the keys and values
    that the base itself computes of them; it helps before anything is trained. `cross-attention`: the
    paper's, with an encoder and weights of its own, between self-attention and feed-forward. `none`: the
    neighbours only vote."""
    layers: tuple[int, ...] = ()
    """Layers that read neighbours, counted from 1. Empty: all for `attention`, every third from 6 on for
    `cross-attention`."""
    distance: int = 192
    """How many positions before the tokens that read it a neighbour ends, for `attention`, in bases whose
    positions are relative. Too near, heads that look for the token before take a neighbour's for it."""
    tune_heads: bool = True
    """Whether to train how much and how sharply each head reads neighbours, for `attention`, so that those
    that gain nothing learn to leave them. Every step then takes a backward pass through the whole base."""
    weigh_likeness: bool = True
    """Whether heads also count a neighbour by how much of the chunk that found it stands in it, for
    `attention`. Learned as `tune_heads` says, and nothing at first."""
    pointer: bool = True
    """Whether the neighbours' tokens vote for the next one, weighed by a learned gate."""
    pointer_layer: int = 0
    """The layer whose states are matched, counted from 1. 0: two fifths of the way up for `attention`, where
    trials matched best, and the fourth otherwise, as neighbours are then read through these layers only."""
    encoder: EncoderConfig = field(
        default_factory=lambda: EncoderConfig(d_model=256, num_heads=4, ffw_dim=1024)
    )
    """The paper's encoder, for `cross-attention`."""
    cross_attention_positions: bool = True
    """Whether the paper's cross-attention adds relative positional logits."""

    def __post_init__(self) -> None:
        require_positive(self, "chunk_len")
        require(self.distance >= 0, f"distance is {self.distance}; expected 0 or more")
        require_one_of("reading", self.reading, "attention", "cross-attention", "none")
        require(
            self.pointer or self.reading != "none",
            "reading is none and there is no pointer; expected one of them, to use neighbours at all",
        )

    def settled(self, num_layers: int) -> "FitConfig":
        """The same with the layers of a base of this depth chosen, as a record holds them."""
        layers = self.layers
        if not layers and self.reading == "attention":
            layers = tuple(range(1, num_layers + 1))
        elif not layers and self.reading == "cross-attention":
            layers = cross_attention_places(num_layers)
        elif self.reading == "none":
            layers = ()
        require_layers("layers", layers, num_layers)
        matched = self.pointer_layer
        if not matched:
            matched = max(1, round(0.4 * num_layers)) if self.reading == "attention" else min(4, num_layers)
        require(
            1 <= matched <= num_layers,
            f"pointer_layer is {matched}; expected a layer of the base's {num_layers}",
        )
        return dataclasses.replace(self, layers=layers, pointer_layer=matched)
