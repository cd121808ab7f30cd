"""What a corpus of any size would take: disk, memory, hours and machines for every stage.

The costs of a token, a chunk and a key are those that were measured here (`coefficients.py`). How they add up
is written in this file and nowhere else, and `ASSUMPTIONS` says what is taken for granted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from retro.config import CorpusConfig, ModelConfig, TrainingConfig
from retro.config.machine import MachineConfig
from retro.errors import ConfigError
from retro.planning.coefficients import Coefficients
from retro.planning.operations import forward_operations, num_weights, training_operations
from retro.retrieval.index.compressed import KEYS_A_LIST, MAX_LISTS
from retro.retrieval.index.opening import EXACT_BELOW, HNSW_UP_TO

HOUR = 3600.0
SAMPLE_BYTES = CorpusConfig().tokenizer_sample_bytes
TUNING_SCANS = 2 * 512
"""Queries that tuning compares with all keys, to know what an approximate search should find."""
VISITS_POWER = 0.53
"""Ten times the keys take 3.4 times the codes for the same recall, as was measured from 0.1 to 10 million."""
CODE_BYTES = 32 + 8
"""A compressed key with its number."""
LINK_BYTES = 8
"""A neighbour and its distance."""
DOCUMENT_BYTES = 120
"""What the command remembers of a document while duplicates are removed."""
CHUNK_BYTES = 30
"""What finding neighbours remembers of a chunk."""
STATE_BYTES = 16
"""Of a weight in training: itself, its gradient and two moments."""
PAPER_DISK = 93e12
PAPER_SECONDS = 0.010
PAPER_TOKENS = 1.75e12
ASSUMPTIONS = (
    "cores are as fast as the one that was measured, times --machine.speed, and are all busy",
    "documents, and what the tokenizer makes of them, are like those that were measured (--like): where "
    "documents are longer, neighbours take more searches to look past the chunk's own",
    f"the tokenizer is trained on at most {SAMPLE_BYTES / 1e6:.0f} MB, to as many tokens as the one measured",
    f"the index is chosen by the number of all keys and searched as one: exact below {EXACT_BELOW:,}, a "
    f"graph up to {HNSW_UP_TO:,}, compressed keys beyond",
    "tuning chooses the effort for a graph that it chose for the keys that were measured",
    f"among ten times as many compressed keys a query visits {10**VISITS_POWER:.1f} times the lists for the "
    f"same recall, and at most {MAX_LISTS:,}, whatever the recall",
    f"compressed keys lie in lists of {KEYS_A_LIST}; a list is found in time that grows as the logarithm of "
    "their number; reading the candidates' keys from disk to rank them again costs nothing",
    "training is bound by arithmetic, at the speed of a small model on one core; the network costs nothing",
    "storage is as quick as is needed, and nothing is kept twice; starting a command is not counted",
)


@dataclass(frozen=True)
class StageCost:
    """What a stage takes. Seconds are of one core of this machine."""

    name: str
    seconds: float
    disk: float
    memory: float
    """Bytes that the machines must hold together; of the command alone where the work is sent away."""

    def hours(self, machine: MachineConfig) -> float:
        """With one machine."""
        return self.seconds / (machine.cores * machine.speed) / HOUR

    def machines(self, machine: MachineConfig, days: float) -> int:
        """As many as finish in so many days and hold what has to be held."""
        by_time = self.hours(machine) / (24 * days)
        by_memory = self.memory / (machine.memory_gb * 1e9)
        by_disk = self.disk / (machine.disk_tb * 1e12)
        return max(1, math.ceil(max(by_time, by_memory, by_disk) - 1e-9))


@dataclass(frozen=True)
class Costs:
    """All stages, and how long a search takes."""

    num_tokens: float
    num_chunks: float
    index: str
    stages: tuple[StageCost, ...]
    search: float
    """Seconds of one core for one query, its key included."""

    @property
    def disk(self) -> float:
        """Of the datastore: tokens, keys, index."""
        return (
            sum(stage.disk for stage in self.stages if stage.name in ("keys", "index")) + 2 * self.num_tokens
        )

    def stage(self, name: str) -> StageCost:
        return next(stage for stage in self.stages if stage.name == name)


def index_kind(num_keys: float) -> str:
    if num_keys < EXACT_BELOW:
        return "exact"
    return "graph" if num_keys <= HNSW_UP_TO else "compressed"


def ingest_seconds(known: Coefficients, num_bytes: float) -> float:
    """Seconds to make tokens of so much text, and first a tokenizer."""
    each = known.reading + known.cutting + known.packing
    return known.learning.at(min(num_bytes, SAMPLE_BYTES)) + num_bytes * each


def build_seconds(known: Coefficients, num_keys: float) -> float:
    """Seconds that an index of so many keys takes to build and to tune."""
    kind = index_kind(num_keys)
    if kind == "exact":
        return 0.0
    comparing = TUNING_SCANS * known.scanning.at(num_keys)
    if kind == "graph":
        return num_keys * known.linking.at(num_keys) + known.graph_tuning + comparing
    num_lists = num_keys / KEYS_A_LIST
    learning = known.tables + known.clustering * num_lists**1.5
    coding = num_keys * (known.coding + known.listing.at(num_lists))
    return learning + coding + known.compressed_tuning + comparing


def search_seconds(known: Coefficients, num_keys: float) -> float:
    """Seconds that a query with a key takes."""
    kind = index_kind(num_keys)
    if kind == "exact":
        return known.scanning.at(num_keys)
    if kind == "graph":
        return known.walking.at(num_keys)
    visiting = known.visiting.at(num_keys, VISITS_POWER, MAX_LISTS)
    return known.listing.at(num_keys / KEYS_A_LIST) + visiting


def finding_seconds(known: Coefficients, num_chunks: float) -> float:
    """Seconds that the neighbours of all chunks take."""
    # Of the searches that are made once more about as large a part is made again.
    searches = 1 / (1 - known.repeated.at(num_chunks))
    return num_chunks * (searches * search_seconds(known, num_chunks) + known.gathering)


def training_seconds(known: Coefficients, model: ModelConfig, training: TrainingConfig) -> float:
    """Seconds of all steps, with the validations and checkpoints among them."""
    weights = all_weights(model)
    batch = training.batch_size * training.seq_len
    step = batch * training_operations(model, training) / known.train_speed + weights * known.updating
    # Read with the neighbours and without, if there are any.
    read = [model, model.baseline()] if model.uses_retrieval else [model]
    operations = sum(forward_operations(one, training.seq_len, training.num_neighbours) for one in read)
    validation = training.validate_batches * batch * operations / known.train_speed
    saves = due(training.num_steps, training.checkpoint_every)
    validations = due(training.num_steps, training.validate_every, training.checkpoint_every)
    validations += int(training.validate_first)
    return training.num_steps * step + validations * validation + saves * weights * known.saving


def due(num_steps: int, *every: int) -> int:
    """After how many steps something is done that is done so often, and after the last."""
    both = math.lcm(*every)
    before = num_steps - 1
    number = sum(before // steps for steps in every)
    return number - (before // both if len(every) > 1 else 0) + 1


def all_weights(model: ModelConfig) -> int:
    """With those of the tokens' vectors."""
    decoder, encoder = num_weights(model)
    return decoder + encoder + model.vocab_size * model.d_model


def plan_costs(
    known: Coefficients,
    num_tokens: float,
    model: ModelConfig,
    training: TrainingConfig,
    num_neighbours: int = 20,
    chunk_len: int = 64,
) -> Costs:
    """The costs of all stages for so many tokens, and of a model that is trained as its recipe says."""
    num_bytes = num_tokens * known.bytes_per_token
    num_chunks = num_tokens / chunk_len
    kind = index_kind(num_chunks)
    keys = num_chunks * 2 * known.width
    index_disk = {"exact": 0.0, "graph": known.graph_disk, "compressed": CODE_BYTES}[kind] * num_chunks
    # Exact search and graphs hold the keys, graphs in float32; those of compressed ones stay on disk.
    index_memory = {"exact": keys, "graph": index_disk + 2 * keys, "compressed": index_disk}[kind]
    search = search_seconds(known, num_chunks)
    weights = all_weights(model)
    answer = forward_operations(model, training.seq_len, training.num_neighbours) / known.train_speed
    stages = (
        StageCost(
            "ingest",
            ingest_seconds(known, num_bytes),
            num_bytes * known.text_disk + num_tokens * known.token_disk,
            num_tokens / known.tokens_per_document * DOCUMENT_BYTES,
        ),
        StageCost("keys", known.keys.at(num_chunks), keys, 0.0),
        StageCost("index", build_seconds(known, num_chunks), index_disk, index_memory),
        StageCost(
            "neighbours",
            finding_seconds(known, num_chunks),
            num_chunks * num_neighbours * LINK_BYTES,
            index_memory + num_chunks * CHUNK_BYTES,
        ),
        StageCost(
            "training",
            training_seconds(known, model, training),
            weights * STATE_BYTES,
            weights * STATE_BYTES,
        ),
        # A thousand tokens of answers, with a search for each of their chunks.
        StageCost(
            "serving 1,000 tokens",
            1000 * answer + 1000 / chunk_len * (known.embedding + search),
            0.0,
            index_memory + 4 * weights,
        ),
    )
    return Costs(num_tokens, num_chunks, kind, stages, known.embedding + search)


def curve(
    known: Coefficients, sizes: Sequence[float], model: ModelConfig, training: TrainingConfig
) -> list[Costs]:
    """The same for several sizes."""
    return [plan_costs(known, size, model, training) for size in sizes]


def parse_tokens(text: str) -> float:
    """`1.75T`, `300M` or `4,000,000`."""
    scales = {"K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
    digits = text.strip().replace(",", "").upper()
    scale = scales.get(digits[-1:], 1.0)
    try:
        number = float(digits[:-1] if digits[-1:] in scales else digits) * scale
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 1e4):
        raise ConfigError(f"--tokens is {text!r}; expected at least 10K, such as 300M or 1.75T")
    return number
