"""What a stage costs a token, a chunk or a key, as it was measured on this machine; kept in a file.

Times are of one core. Another machine's cores are taken to be as fast as these, unless the plan says how much
faster they are.
"""

import math
import platform
from dataclasses import dataclass
from pathlib import Path

import retro
from retro.catalogue.fetching import cache_dir
from retro.config.as_json import from_dict, to_dict
from retro.errors import RetroError
from retro.stages.files import make_fingerprint, read_object, write_json


@dataclass(frozen=True)
class Line:
    """Seconds that grow with a number: some at once, and some for each."""

    fixed: float
    each: float

    def at(self, number: float) -> float:
        return self.fixed + self.each * number

    @staticmethod
    def through(numbers: tuple[float, float], seconds: tuple[float, float]) -> "Line":
        """The line through two measurements; noise must not make any part of it negative."""
        each = max(0.0, (seconds[1] - seconds[0]) / (numbers[1] - numbers[0]))
        each = min(each, seconds[1] / numbers[1])
        return Line(max(0.0, seconds[1] - each * numbers[1]), each)


@dataclass(frozen=True)
class Growth:
    """A cost that grows as the logarithm of a size."""

    size: float
    cost: float
    """At this size, and below."""
    doubling: float
    """What every doubling of the size adds."""

    def at(self, size: float) -> float:
        return self.cost + self.doubling * math.log2(max(size, self.size) / self.size)

    @staticmethod
    def through(sizes: tuple[float, float], costs: tuple[float, float]) -> "Growth":
        """The growth between two measurements, which noise must not turn round."""
        doubling = max(0.0, (costs[1] - costs[0]) / math.log2(sizes[1] / sizes[0]))
        return Growth(sizes[0], costs[1] - doubling * math.log2(sizes[1] / sizes[0]), doubling)


@dataclass(frozen=True)
class Visits:
    """Seconds of a search that visits more lists of compressed keys the more keys there are."""

    keys: float
    """Among which it was measured."""
    lists: float
    """That tuning had it visit then."""
    seconds: Line
    """By the number of lists: what they propose is ranked again, however many they are."""

    def at(self, num_keys: float, power: float, most: float) -> float:
        """For the same recall among more keys, as long as tuning lets a search visit so many lists."""
        lists = self.lists * (max(num_keys, self.keys) / self.keys) ** power
        return self.seconds.at(min(lists, max(most, self.lists)))


@dataclass(frozen=True)
class Decline:
    """A part that falls as a power of a size."""

    size: float
    part: float
    """At this size, and below."""
    power: float

    def at(self, size: float) -> float:
        return self.part * (self.size / max(size, self.size)) ** self.power

    @staticmethod
    def through(sizes: tuple[float, float], parts: tuple[float, float]) -> "Decline":
        """The decline between two measurements, which noise must not turn round."""
        if not 0 < parts[1] < parts[0]:
            return Decline(sizes[0], parts[1], 0.0)
        return Decline(sizes[0], parts[0], math.log(parts[0] / parts[1]) / math.log(sizes[1] / sizes[0]))


@dataclass(frozen=True, kw_only=True)
class Coefficients:
    """Measured on real text and its keys, and with a small RETRO. Seconds are of one core."""

    embedder: str
    width: int
    """Numbers in a key."""
    processor: str
    measured: str
    """When."""

    bytes_per_token: float
    tokens_per_document: float
    reading: float
    """Seconds a byte of text takes to be read, cleaned and split."""
    learning: Line
    """Seconds that training the tokenizer takes by the bytes of its sample."""
    cutting: float
    """Seconds a byte takes to be cut into tokens."""
    packing: float
    """Seconds a byte takes among duplicates and contamination."""
    text_disk: float
    """Bytes on disk for a byte of text, compressed, with what tells its documents."""
    token_disk: float
    """Bytes on disk for a token, as it is cut and as it is packed."""

    keys: Line
    """Seconds by the chunks whose keys are made and stored, once the embedder is open."""
    embedding: float
    """Seconds of it that the embedder alone takes for a chunk."""

    scanning: Line
    """Seconds of a query by the keys that it is compared with, one by one; many queries go together."""
    linking: Growth
    """Seconds a key takes in a graph, on the average over its growth, by the size that it reaches."""
    walking: Growth
    """Seconds of a query in a graph, with the effort that tuning chose for it."""
    graph_tuning: float
    """Seconds that tuning a graph takes, beside its comparisons with all keys."""
    graph_disk: float
    """Bytes of a graph for a key, beside the key itself."""
    coding: float
    """Seconds a key takes to be compressed, once its list is found."""
    listing: Growth
    """Seconds it takes to find the list of a key, by the number of lists."""
    tables: float
    """Seconds to learn how keys are rotated and compressed, from a sample whose size is always the same."""
    clustering: float
    """Seconds to learn the lists, divided by their number to the power of 1.5: a sample of so many keys a
    list is compared with the root of their number."""
    visiting: Visits
    """Of a query that visits its lists, once the nearest is found, and ranks again what they propose."""
    compressed_tuning: float
    """Seconds that tuning compressed keys takes, beside its comparisons with all of them."""
    repeated: Decline
    """Part of the searches that are repeated to look past the chunk's own document, by the number of keys."""
    gathering: float
    """Seconds a chunk takes beside its searches, to be looked up, sorted and stored."""

    train_speed: float
    """Floating point operations a second in training."""
    updating: float
    """Seconds a weight takes to be updated after a step."""
    saving: float
    """Seconds a weight takes in a checkpoint."""


def place_of(embedder: str, like: str = "") -> Path:
    """Where the coefficients of this machine and this version are kept, for text like that of a source."""
    machine = (platform.node(), platform.processor())
    known = make_fingerprint(retro.__version__, *machine, embedder, *([like] if like else []))
    return cache_dir() / "plan" / f"{known}.json"


def read_coefficients(path: Path) -> Coefficients | None:
    """Those that were measured before, if there are any that can be read."""
    if not path.exists():
        return None
    try:
        return from_dict(Coefficients, read_object(path, "measure again"), str(path))
    except RetroError:
        return None  # of another version; measuring takes two minutes


def keep_coefficients(coefficients: Coefficients, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, to_dict(coefficients))
