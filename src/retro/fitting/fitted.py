"""A pretrained causal LM of Hugging Face with retrieval: frozen, exact without neighbours, better with them.

The base is not changed. Hooks let it ask, layer by layer, what there is to read (`readings`); without
neighbours they stay silent, and its logits are what they were, bit for bit. What is new is small, and lies
beside the base (`additions`). Only that is trained and saved; the base is named by its id and a checksum.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from retro.config.as_json import to_dict
from retro.config.fit import FitConfig
from retro.errors import ConfigError
from retro.fitting.additions import Additions
from retro.fitting.base import Known, describe_base, look_at
from retro.fitting.beside import put_beside, take_away
from retro.fitting.cached import decoding_fault
from retro.fitting.decoding import FittedDecoding
from retro.fitting.neighbours import Retrieved, read_neighbours, trunk_states
from retro.fitting.places import evaluating, settled
from retro.fitting.reader import Reader, change_weights, reader_in
from retro.fitting.readings import Joints, Reading, expect_hookable
from retro.fitting.whole import WatchedReading, WholeReading
from retro.machine import has_bfloat16
from retro.model.pointer import Vote
from retro.model.protocol import ModelFacts, Scored
from retro.model.read_out import score_mixture, score_states
from retro.model.weights import write_model


class FittedModel(Additions):
    """A base that reads neighbours."""

    kind = "fitted"

    def __init__(
        self,
        base: nn.Module,
        config: FitConfig | None = None,
        pad_id: int | None = None,
        end_id: int | None = None,
        base_id: str = "",
        known: Known | None = None,
    ) -> None:
        """`pad_id` may lie behind the base's embedding, as it never reaches the base; by default it does.

        `known` spares looking at the base once more.
        """
        super().__init__()
        expect_hookable(base)
        # In a tuple, which hides it: it is neither trained, nor counted, nor saved with what is new.
        self._base = (base.requires_grad_(False).eval(),)
        known = known or look_at(base)
        places = known.places
        self.config: FitConfig = settled(config or FitConfig(), places)
        hub: Any = base.config
        text = hub.get_text_config()
        self.vocab_size: int = text.vocab_size
        self.pad_id = self.vocab_size if pad_id is None else pad_id
        ends = getattr(text, "eos_token_id", None)
        first_end = ends[0] if isinstance(ends, list | tuple) else ends
        self.end_id: int | None = first_end if end_id is None else end_id
        self.max_context: int | None = getattr(text, "max_position_embeddings", None)
        if self.max_context is not None and self.config.chunk_len > self.max_context // 2:
            raise ConfigError(
                f"chunk_len is {self.config.chunk_len}, and the base reads {self.max_context} tokens; "
                "expected chunks of which two, a neighbour and its continuation, fit into that"
            )
        self.base_id = base_id or str(hub._name_or_path)
        self.width = places.width
        self.head = known.head
        self.last_width = known.last_width
        # What the decoder is given its cache by.
        named = inspect.signature(known.decoder.forward).parameters
        self.cache_name = "cache_params" if "cache_params" in named else "past_key_values"
        self.takes_positions = known.takes_positions
        self.relative = known.relative
        self._decodes: frozenset[bool] = frozenset()
        self.add(places.num_heads, next(base.parameters()).dtype)
        crossed = tuple(layer - 1 for layer in self.config.layers) if self.cross else ()
        self._watched = (self.config.pointer_layer - 1,) if self.config.pointer else ()
        self.joints = Joints(base, places, self._watched, crossed)
        self._places = places
        self._plain_reader = Reader(known.decoder, self.joints)
        self.reader = self._plain_reader
        """Who reads the neighbours."""
        # A compiler would keep what the hooks found the first time; what it compiles is the rest.
        self.run: Callable[..., Any] = torch.compiler.disable(self._run)
        """A forward pass of the base, or of another reader, up to its last states, with a reading or None."""
        if self.bias is not None:
            put_beside(base)
        if self.pointer is not None:
            self._calibrate_roughly()

    @property
    def base(self) -> nn.Module:
        return self._base[0]

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            self.vocab_size,
            self.config.chunk_len,
            self.pad_id,
            self.end_id,
            retrieves=True,
            max_context=self.max_context,
            has_spare_ids=True,
            slides=self.relative,
        )

    @property
    def device(self) -> torch.device:
        return next(self.base.parameters()).device

    def detach(self) -> nn.Module:
        """Take retrieval out of the base, and give it back as it was. The fitted model is of no use then."""
        self.joints.remove()
        take_away(self.base)
        return self.base

    # The base is no submodule, so what is done to all modules is done to it here.
    def _apply(self, fn: Any, recurse: bool = True) -> "FittedModel":
        super()._apply(fn, recurse)
        change_weights(self.base, fn, recurse)
        # A copy of the base would not be the same any more.
        self.reader = self._plain_reader
        return self

    def train(self, mode: bool = True) -> "FittedModel":
        super().train(mode)
        self.base.eval()  # frozen: its dropout stays off
        return self

    def quicken(self, dtype: torch.dtype | None = None) -> None:
        """Read neighbours in another precision from now on: bfloat16 if the hardware has it, else as before.

        It takes the memory of a second copy of the base's weights.
        """
        own = next(self.base.parameters()).dtype
        if dtype is None and own == torch.float32 and has_bfloat16(self.device):
            dtype = torch.bfloat16
        if dtype is not None and not self.is_quick:
            self.reader = reader_in(dtype, self.reader.decoder, self._places, self._watched)

    @property
    def is_quick(self) -> bool:
        """Whether neighbours are read in another precision than the text."""
        return self.reader is not self._plain_reader

    # Reading

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of the next token at every position; without neighbours exactly those of the base."""
        retrieved = self.retrieve(tokens, neighbours, neighbour_mask)
        if retrieved is None:
            logits: Tensor = self.base(**self.inputs(tokens), use_cache=False).logits
            return logits
        states, vote = self._read(tokens, retrieved)
        logits = self.head(states)
        if vote is None:
            return logits
        assert self.pointer is not None
        return self.pointer.mix_logits(vote, states, logits)

    def score(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> Scored:
        if neighbours is not None and not torch.is_grad_enabled():
            (scored,) = self.score_each(
                tokens, targets, (neighbours.shape[2],), neighbours, neighbour_mask, greedy=greedy
            )
            return scored
        retrieved = self.retrieve(tokens, neighbours, neighbour_mask)
        return self._scored(*self._read(tokens, retrieved), targets, greedy)

    @torch.no_grad()
    def score_each(
        self,
        tokens: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"],
        ks: Sequence[int],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
        *,
        greedy: bool = False,
    ) -> list[Scored]:
        """Neighbours are read once; those of a smaller k are the first of them."""
        off = self.score(tokens, targets, greedy=greedy) if neighbours is None or 0 in ks else None
        if neighbours is None:
            assert off is not None
            return [off] * len(ks)
        mask = neighbour_mask if neighbour_mask is not None else torch.ones_like(neighbours[..., 0] > 0)
        rows: dict[int, list[Scored]] = {k: [] for k in ks if k}
        # Sequence by sequence, as the neighbours of many take far more memory than the text.
        for row in range(len(tokens)):
            one = slice(row, row + 1)
            retrieved = self.retrieve(tokens[one], neighbours[one], mask[one])
            for k, scored in rows.items():
                first = None if retrieved is None else retrieved.first(k)
                scored.append(self._scored(*self._read(tokens[one], first), targets[one], greedy))
        found = {k: _joined(scored) for k, scored in rows.items()}
        if off is not None:
            found[0] = off
        return [found[k] for k in ks]

    def _scored(self, states: Tensor, vote: Vote | None, targets: Tensor, greedy: bool) -> Scored:
        """How probable the targets are, by the last states and the vote."""
        if vote is None:
            return score_states(self.head, states, targets, self.vocab_size, self.pad_id, greedy)
        assert self.pointer is not None
        return score_mixture(
            self.pointer, self.head, states, vote, targets, self.vocab_size, self.pad_id, greedy
        )

    @torch.no_grad()
    def neighbour_attention(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
        neighbour_mask: Bool[Tensor, "batch chunk neighbour"] | None = None,
    ) -> Float[Tensor, "batch seq neighbour"]:
        """At each position, the part of the attention that goes to each neighbour read there.

        Beside the text it is a part of all attention, the text's included. The mean over heads and layers;
        zero if only a pointer reads neighbours.
        """
        retrieved = self.retrieve(tokens, neighbours, neighbour_mask)
        nothing = torch.zeros(*tokens.shape, neighbours.shape[2], device=tokens.device)
        if retrieved is None:
            return nothing
        reading = WatchedReading(self, retrieved, tokens != self.pad_id)
        self.run(reading, **self.inputs(tokens), use_cache=False)
        return torch.stack(reading.attention).mean(0) if reading.attention else nothing

    def begin(self, window: int = 0) -> FittedDecoding:
        return FittedDecoding(self, window)

    def expect_cached(self, ragged: bool) -> None:
        """Refuse to go token by token, or from prompts of several lengths, if the base does not bear it.

        Found out when it is first asked for, by comparing with the whole.
        """
        if ragged in self._decodes:
            return
        fault = decoding_fault(self, ragged)
        if fault is not None:
            raise ConfigError(
                f"{type(self.base).__name__} cannot be sampled from: {fault}; expected the logits of the "
                "whole text; score text with it instead"
            )
        self._decodes |= {ragged}

    def inputs(self, tokens: Int[Tensor, "batch seq"]) -> dict[str, Tensor]:
        """What the base is called with: padding is masked, and no id that it does not know reaches it."""
        is_token = tokens != self.pad_id
        if bool(is_token.all()):
            return {"input_ids": tokens}
        return {"input_ids": tokens.masked_fill(~is_token, 0), "attention_mask": is_token.long()}

    def _run(self, reading: Reading | None, reader: Reader | None = None, **inputs: Any) -> Any:
        return (reader or self._plain_reader).read(reading, **inputs)

    def _read(
        self, tokens: Int[Tensor, "batch seq"], retrieved: Retrieved | None
    ) -> tuple[Float[Tensor, "batch seq width"], Vote | None]:
        """The last states of whole sequences, and the vote of their neighbours."""
        if retrieved is None:
            return self.run(None, **self.inputs(tokens), use_cache=False).last_hidden_state, None
        reading = WholeReading(self, retrieved, tokens != self.pad_id)
        # The base itself needs no gradient unless something within it is trained.
        trains = torch.is_grad_enabled() and self.trains_within
        with torch.set_grad_enabled(trains):
            states = self.run(reading, **self.inputs(tokens), use_cache=False).last_hidden_state
        return states, reading.vote()

    def retrieve(
        self,
        tokens: Int[Tensor, "batch seq"],
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None,
        mask: Bool[Tensor, "batch chunk neighbour"] | None,
    ) -> Retrieved | None:
        """The neighbours as the base reads them; None if there is nothing to read."""
        if neighbours is None or neighbours.numel() == 0:
            return None
        self.facts.expect_neighbours(tokens, neighbours)
        batch, num_chunks = neighbours.shape[:2]
        chunks = torch.arange(num_chunks, device=neighbours.device).expand(batch, -1)
        m = self.config.chunk_len
        found_by = rearrange(tokens[:, : num_chunks * m], "b (u m) -> b u m", m=m)
        return self.read_neighbours(neighbours, mask, chunks, found_by)

    def read_neighbours(
        self,
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"],
        mask: Bool[Tensor, "batch chunk neighbour"] | None,
        chunks: Int[Tensor, "batch chunk"],
        found_by: Int[Tensor, "batch chunk m"],
    ) -> Retrieved:
        """Let the base read neighbours; `chunks` are the numbers of the chunks that retrieved them, and
        `found_by` their tokens."""
        return read_neighbours(self, neighbours, mask, chunks, found_by)

    # What is usual

    @torch.no_grad()
    def calibrate(self, tokens: Int[Tensor, "batch seq"]) -> None:
        """Learn from some text what the base's states are usually like, by which they are compared."""
        if self.pointer is None:
            return
        is_token = tokens != self.pad_id
        # The first token of a sequence is like no other in most models.
        states = trunk_states(self, tokens)[:, 1:]
        self.pointer.calibrate(states[is_token[:, 1:]])

    def _calibrate_roughly(self) -> None:
        """On made-up text, until there is real text."""
        generator = torch.Generator().manual_seed(0)
        tokens = torch.randint(0, self.vocab_size, (4, 2 * self.config.chunk_len), generator=generator)
        with evaluating(self.base):
            self.calibrate(tokens.to(self.device))

    # What the run, the optimizer and kNN-LM ask

    @property
    def key_width(self) -> int:
        return self.last_width

    def keys(
        self, tokens: Int[Tensor, "batch seq"], targets: Int[Tensor, "batch seq"] | None = None
    ) -> tuple[Float[Tensor, "batch seq width"], Float[Tensor, "batch seq"] | None]:
        """The last states, which the output matrix reads, and the targets' log-probabilities."""
        states, _ = self._read(tokens, None)
        if targets is None:
            return states, None
        scored = score_states(self.head, states, targets, self.vocab_size, self.pad_id)
        return states, scored.log_probs

    @contextmanager
    def watching_keys(self) -> Iterator[list[Tensor]]:
        """Collect the last states of all that is read within this block."""
        seen: list[Tensor] = []
        decoder = self._plain_reader.decoder
        handle = decoder.register_forward_hook(
            lambda _module, _inputs, output: seen.append(output.last_hidden_state)
        )
        try:
            yield seen
        finally:
            handle.remove()

    def settings(self) -> dict[str, Any]:
        return {
            "fit": to_dict(self.config),
            "base": describe_base(self.base, self.base_id),
            "pad_id": self.pad_id,
            "end_id": self.end_id,
        }

    def save(self, path: str | Path) -> None:
        """Write what is new into a folder, and which base it belongs to; `retro.load` reads it back."""
        write_model(self, Path(path))

    def operators(self) -> Iterator[nn.Module]:
        if self.cross is not None:
            yield from self.cross

    def freeze_all_but_retrieval(self) -> None:
        """Nothing to do: the base is frozen, and all else is retrieval."""

    def set_dropout(self, rate: float) -> None:
        if rate:
            raise ConfigError(f"dropout is {rate}; expected 0, as a base that is fitted stays as it is")

    def num_parameters(self, embeddings: bool = False) -> int:
        tables = {id(module.weight) for module in self.base.modules() if isinstance(module, nn.Embedding)}
        everything = [*self.base.parameters(), *self.parameters()]
        return sum(p.numel() for p in everything if embeddings or id(p) not in tables)


def _joined(rows: Sequence[Scored]) -> Scored:
    """The scores of sequences, one below the other."""
    greedy = [row.greedy for row in rows if row.greedy is not None]
    return Scored(torch.cat([row.log_probs for row in rows]), torch.cat(greedy) if greedy else None)
