"""What can be done with a causal LM, found out by doing it: layers, causality, every way to read, the cache.

A passport is a list of checks, each with a verdict and its reason. Nothing goes by a model's name: every
check runs the model on a few made-up tokens and compares. The model is left as it was.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from retro.config import EncoderConfig
from retro.config.fit import FitConfig
from retro.errors import ConfigError
from retro.fitting.base import Known, look_at
from retro.fitting.cached import FAULTS, decoding_fault
from retro.fitting.fitted import FittedModel
from retro.fitting.interface import KNOWN, names_of
from retro.fitting.literal import Literal
from retro.fitting.places import Places, StreamError, evaluating, find_places, probe_tokens
from retro.fitting.readings import active, expect_hookable

WORKS = "works"
AFTER = "works after the layer"
REFUSED = "refused"
ESSENTIAL = ("layers", "residual stream", "causality", "output", "off")
"""Checks without which nothing can be fitted."""
READINGS = {"attention": "reading attention", "cross-attention": "reading cross-attention", "none": "pointer"}
"""The check of each `FitConfig.reading`."""
CHUNK_LEN = 4
LENGTH = 14
"""Three chunks, and some tokens more."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried."""

    name: str
    verdict: str
    """`works`, `works after the layer` or `refused`."""
    reason: str

    @property
    def is_refused(self) -> bool:
        return self.verdict == REFUSED


@dataclass(frozen=True)
class Passport:
    """What was found out about a model. A check that could not be tried for want of another is not there."""

    base: str
    """The model's class."""
    checks: tuple[Check, ...]

    def __getitem__(self, name: str) -> Check:
        return next(check for check in self.checks if check.name == name)

    def __contains__(self, name: str) -> bool:
        return any(check.name == name for check in self.checks)

    @property
    def readings(self) -> tuple[str, ...]:
        """The ways to read neighbours that work, of those that were tried."""
        return tuple(
            reading
            for reading, name in READINGS.items()
            if name in self and self.fault(reading, pointer=False) is None
        )

    def fault(self, reading: str, pointer: bool = True) -> str | None:
        """Why the model cannot be fitted in this way; None if it can."""
        wanted = [*ESSENTIAL, READINGS[reading], *(["pointer"] if pointer else [])]
        for check in self.checks:
            if check.name in wanted and check.is_refused:
                return f"{check.name}: {check.reason}"
        return None

    def expect(self, reading: str, pointer: bool = True) -> None:
        """Refuse in one line what the passport refuses."""
        fault = self.fault(reading, pointer)
        if fault is None:
            return
        essential = any(check.is_refused and check.name in ESSENTIAL for check in self.checks)
        instead = "fit another model" if essential else "set reading to another, as retro fit --check shows"
        raise ConfigError(
            f"{self.base} cannot be fitted with reading {reading} ({fault}); "
            f"expected a causal LM that can read neighbours so; {instead}"
        )


def inspect_base(
    model: nn.Module, readings: Sequence[str] = tuple(READINGS), sampling: bool = True
) -> Passport:
    """Try everything that fitting needs, or as much of it as these readings need."""
    checks: list[Check] = []
    with evaluating(model), torch.no_grad(), _left_as_it_was(model):
        probe = _Probe(model)
        for attempt in (probe.layers, probe.stream, probe.causality, probe.output, probe.off):
            checks.append(_tried(attempt))
            if checks[-1].is_refused:
                return Passport(type(model).__name__, tuple(checks))
        attempts = {
            "attention": probe.attention,
            "cross-attention": probe.cross_attention,
            "none": probe.pointer,
        }
        checks += [_tried(attempt) for reading, attempt in attempts.items() if reading in readings]
        if sampling:
            checks.append(_tried(probe.cache))
            checks.append(_tried(probe.padding))
    return Passport(type(model).__name__, tuple(checks))


def fit(model: nn.Module, config: FitConfig | None = None) -> FittedModel:
    """Give a Hugging Face causal LM retrieval. The model itself is frozen; `detach` gives it back.

    What the model's passport refuses is refused here, in one line.
    """
    config = config or FitConfig()
    expect_fitting(model, config)
    return FittedModel(model, config)


def expect_fitting(model: nn.Module, config: FitConfig) -> None:
    """Refuse in one line what the passport of a model refuses for this config."""
    expect_hookable(model)  # here, as it says what to do, which a passport has no room for
    needed = [config.reading, *(["none"] if config.pointer else [])]
    inspect_base(model, needed, sampling=False).expect(config.reading, config.pointer)


class _RefusedError(Exception):
    """Ends a check with its reason."""


def _tried(attempt: Callable[[], tuple[str, str]]) -> Check:
    name = (attempt.__doc__ or "").split(":")[0]
    try:
        return Check(name, *attempt())
    except _RefusedError as error:
        return Check(name, REFUSED, str(error))
    except ConfigError as error:
        # What was found is the first part of a message.
        return Check(name, REFUSED, str(error).split(";")[0])
    except FAULTS as error:
        line = (str(error).strip().splitlines() or [""])[0]
        return Check(name, REFUSED, f"{type(error).__name__}: {line}"[:160])


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
        for parameter in trained:
            parameter.requires_grad_(True)


class _Probe:
    """The checks of one model. The first words of each docstring are the check's name."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.places: Places | None = None
        self.known: Known | None = None
        self.stream_fault: str | None = None
        self.caches = False
        self.bare: Tensor = torch.empty(0)
        """The logits of the bare model, before anything is fitted to it."""

    def layers(self) -> tuple[str, str]:
        """layers: a list of modules that are run one after another."""
        config: Any = self.model.config
        if getattr(config, "is_encoder_decoder", False):
            raise _RefusedError("an encoder and a decoder, no causal LM")
        expect_hookable(self.model)
        try:
            self.places = find_places(self.model)
        except StreamError as error:
            self.stream_fault = str(error).split(";")[0]
            return WORKS, "run one after another"
        return WORKS, f"{len(self.places.layers)}, run one after another"

    def stream(self) -> tuple[str, str]:
        """residual stream: every layer reads what the one before gives, (batch, time, width)."""
        if self.places is None:
            raise _RefusedError(self.stream_fault or "")
        return WORKS, f"(batch, time, {self.places.width})"

    def causality(self) -> tuple[str, str]:
        """causality: a token changes no logits before it."""
        tokens = self.tokens(1)
        changed = tokens.repeat(LENGTH, 1)
        size = self.vocab_size
        places = torch.arange(LENGTH, device=tokens.device)
        changed[places, places] = (changed[places, places] + 1) % size
        # In one batch, so that all rows are summed up alike.
        logits = self.logits(torch.cat([tokens, changed]))
        moved = (logits[1:] - logits[:1]).abs().amax(-1).double()
        earlier = torch.ones_like(moved, dtype=torch.bool).tril(-1)
        near = max(1e-3, 8 * torch.finfo(logits.dtype).eps)
        for place in range(1, LENGTH):
            before, after = moved[place][earlier[place]].max(), moved[place][~earlier[place]].max()
            if before > near * after:
                where = int((moved[place] > near * after).nonzero()[0]) + 1
                raise _RefusedError(f"token {place + 1} changes the logits at token {where}, before it")
        if float(moved.max()) == 0:
            raise _RefusedError("no token changes any logits")
        self.bare = self.logits(self.tokens(2))
        return WORKS, f"none of {LENGTH} tokens, changed one by one, moves logits before it"

    def output(self) -> tuple[str, str]:
        """output: logits follow from the last states by a matrix that is known."""
        self.known = look_at(self.model, self.places)
        return WORKS, "logits follow from the last states by what stands behind the decoder"

    def off(self) -> tuple[str, str]:
        """off: to the bit the bare model, fitted without neighbours and after it is detached."""
        names = list(self.model.state_dict())
        hooks = _num_hooks(self.model)
        with self.fitted("none") as fitted:
            if not torch.equal(fitted(self.tokens(2)), self.bare):
                raise _RefusedError("fitted, without neighbours, its logits are not those of the bare model")
        if not torch.equal(self.logits(self.tokens(2)), self.bare):
            raise _RefusedError("detached, the logits are not those of the bare model")
        if names != list(self.model.state_dict()) or hooks != _num_hooks(self.model):
            raise _RefusedError("detached, something of what was fitted is left in it")
        return WORKS, "logits equal to the bit, fitted and detached"

    def attention(self) -> tuple[str, str]:
        """reading attention: the base's own self-attention reads neighbours in one softmax with its past."""
        assert self.places is not None
        unknown = next((name for _, name in names_of(self.model) if name not in KNOWN), None)
        if unknown is not None:
            raise _RefusedError(f"its attention is {unknown!r}, not sdpa or eager")
        if not self.can_attend() and self.places.num_asking:
            raise _RefusedError("every layer asks transformers' attention interface more than once")
        if not self.can_attend():
            raise _RefusedError("no layer attends through transformers' attention interface")
        before = names_of(self.model)
        with self.fitted("attention") as fitted:
            if not torch.equal(fitted(self.tokens(2)), self.bare):
                raise _RefusedError(
                    "its attention computes something else when its config calls it by another name"
                )
            self.compare_on(fitted)
            retrieved = fitted.retrieve(self.tokens(2), self.neighbours(), None)
            assert retrieved is not None
            literal = Literal(fitted, retrieved, self.tokens(2))
            with active(literal):
                self.logits(self.tokens(2))
        if before != names_of(self.model) or not torch.equal(self.logits(self.tokens(2)), self.bare):
            raise _RefusedError("detached, it is not the bare model")
        if literal.off > literal.near:
            raise _RefusedError(
                f"off by {literal.off:.2g} of what neighbours change, against one softmax over neighbours "
                f"and text, in layer {literal.worst + 1}"
            )
        able, depth = len(self.places.reading_layers), len(self.places.layers)
        where = "every layer" if able == depth else f"{able} of {depth} layers"
        return WORKS, f"in {where}; equal to one softmax over neighbours and text"

    def cross_attention(self) -> tuple[str, str]:
        """reading cross-attention: the paper's, between attention and feed-forward or after the layer."""
        assert self.places is not None
        with self.fitted("cross-attention") as fitted:
            self.compare_on(fitted)
        between, depth = self.places.num_between, len(self.places.layers)
        if between == depth:
            return WORKS, "between attention and feed-forward"
        if between:
            return (
                AFTER,
                f"between attention and feed-forward in {between} of {depth} layers, after the others",
            )
        return AFTER, "no module writes into the stream between attention and feed-forward"

    def pointer(self) -> tuple[str, str]:
        """pointer: neighbours vote for the next token, matched by the states of a layer."""
        with self.fitted("none") as fitted:
            self.compare_on(fitted)
            layer = fitted.config.pointer_layer
        return WORKS, f"matched by the states after layer {layer}"

    def cache(self) -> tuple[str, str]:
        """cache: token by token gives the logits of the whole, with neighbours and without."""
        reading = "attention" if self.can_attend() else "none"
        with self.fitted(reading) as fitted:
            fault = decoding_fault(fitted, ragged=False)
        if fault is not None:
            raise _RefusedError(fault)
        self.caches = True
        return WORKS, "token by token equal to the whole, with neighbours and without"

    def padding(self) -> tuple[str, str]:
        """left padding: prompts of several lengths give the logits of each alone."""
        if not self.caches:
            raise _RefusedError("no cache")
        with self.fitted("none") as fitted:
            fault = decoding_fault(fitted, ragged=True)
        if fault is not None:
            raise _RefusedError(fault)
        return WORKS, "prompts of two lengths equal to each alone"

    # What the checks share

    @property
    def vocab_size(self) -> int:
        config: Any = self.model.config
        return int(config.get_text_config().vocab_size)

    def tokens(self, batch: int) -> Tensor:
        return probe_tokens(self.model, batch, LENGTH)

    def neighbours(self) -> Tensor:
        generator = torch.Generator().manual_seed(2)
        shape = (2, LENGTH // CHUNK_LEN, 2, 2 * CHUNK_LEN)
        lowest = min(4, self.vocab_size - 1)
        found = torch.randint(lowest, self.vocab_size, shape, generator=generator)
        return found.to(next(self.model.parameters()).device)

    def logits(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.model(input_ids=tokens, use_cache=False).logits
        return logits

    def can_attend(self) -> bool:
        return self.places is not None and bool(self.places.reading_layers)

    @contextmanager
    def fitted(self, reading: str) -> Iterator[FittedModel]:
        """The model fitted, with what is new as if it were trained, and detached again."""
        assert self.places is not None
        torch.manual_seed(0)
        depth = len(self.places.layers)
        config = FitConfig(
            chunk_len=CHUNK_LEN,
            reading=reading,
            pointer=reading == "none",
            layers=tuple(sorted({1, depth})) if reading == "cross-attention" else (),
            encoder=EncoderConfig(d_model=8, num_layers=1, num_heads=2, head_dim=4, ffw_dim=16),
        )
        fitted = FittedModel(self.model, config, known=self.known).eval()
        try:
            for operator in fitted.operators():
                for parameter in operator.parameters():
                    parameter.add_(0.2 * torch.randn_like(parameter))
            yield fitted
        finally:
            fitted.detach()

    def compare_on(self, fitted: FittedModel) -> None:
        """Neighbours change the logits of those that read them; masked ones change none."""
        tokens, neighbours = self.tokens(2), self.neighbours()
        if not torch.equal(fitted(tokens), self.bare):
            raise _RefusedError("without neighbours the logits are not those of the bare model")
        none = torch.zeros(neighbours.shape[:3], dtype=torch.bool, device=neighbours.device)
        if not torch.equal(fitted(tokens, neighbours, none), self.bare):
            raise _RefusedError("with all neighbours masked the logits are not those of the bare model")
        found = fitted(tokens, neighbours)
        if not bool(found.isfinite().all()):
            raise _RefusedError("with neighbours some logits are not finite")
        moved = (found - self.bare).abs().amax(-1)
        # Near enough: a mixture of experts sums up in an order that depends on all tokens of the batch.
        near = max(1e-3, 8 * torch.finfo(found.dtype).eps) * moved.max()
        if bool((moved[:, : CHUNK_LEN - 1] > near).any()):
            raise _RefusedError("neighbours change logits before the end of the chunk that found them")
        if not bool((moved[:, CHUNK_LEN - 1 :] > 0).all()):
            raise _RefusedError("neighbours change nothing at some of the tokens that read them")


def _num_hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
