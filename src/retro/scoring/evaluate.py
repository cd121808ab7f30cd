"""The evaluation stage: a model scores a token store without retrieval and with several k.

An evaluation belongs to the neighbours it was made with. They are pinned in its folder, so that
it can be opened, inspected and, after an interruption, finished, whatever has been added to the
datastore since. It belongs to the documents that it scored, too: where those are others now, it is
refused, and other training text changes nothing about it.
"""

import json
import shutil
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from retro.config import EvaluationConfig
from retro.config.as_json import from_dict
from retro.corpus.tokens import TokenStore
from retro.errors import ArtifactError
from retro.model.protocol import LanguageModel
from retro.retrieval.chunks import content_hashes
from retro.retrieval.datastore import Datastore
from retro.retrieval.neighbours import Neighbours
from retro.retrieval.pinned import PinnedNeighbours, open_pinned, pin
from retro.scoring.bits_per_byte import Metrics, Sizes, chunk_bytes, expect_saved, measure, score_modes
from retro.scoring.intervals import Interval
from retro.scoring.leakage import FilteredScore, chunk_overlaps, filtered_bits_per_byte, overlap_histogram
from retro.scoring.parts import Opening
from retro.scoring.windows import expect_readable
from retro.stages.executor import Executor
from retro.stages.files import link_or_copy, read_object
from retro.stages.hints import with_paths
from retro.stages.parts import ARRAY, Parts
from retro.stages.progress import Progress, at_step, no_progress
from retro.stages.stage import (
    MANIFEST,
    Artifact,
    Stage,
    open_artifact,
    partial_of,
    recorded_inputs,
    run_stage,
    way_out,
)

COMMAND = "retro evaluate WORK RUN"
OFF = "off"
"""The name of scoring without retrieval."""
NEIGHBOURS = "neighbours"
"""The subfolder of an evaluation that holds the neighbours it was made with."""
VERSION = "datastore_version"
"""The count in a manifest that gives the version of the datastore it was made with."""


def on(k: int) -> str:
    """The name of scoring with k neighbours."""
    return f"on-{k}"


class Evaluation:
    """What was measured: the bits of every document and chunk in every mode, and what follows from them."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact = artifact
        artifact.expect_whole("results.json", "scores.npz")
        self.results: dict[str, Any] = json.loads(artifact.file("results.json").read_text())
        with np.load(artifact.file("scores.npz"), allow_pickle=False) as arrays:
            self.arrays = {name: arrays[name] for name in arrays.files}

    @staticmethod
    def open(path: str | Path) -> "Evaluation":
        return Evaluation(open_artifact(Path(path), "evaluation", COMMAND))

    @property
    def config(self) -> EvaluationConfig:
        return from_dict(EvaluationConfig, self.artifact.config, str(self.artifact.path))

    @property
    def modes(self) -> list[str]:
        return list(self.results["modes"])

    def metrics(self, mode: str) -> Metrics:
        return Metrics.read(self.results["modes"][mode])

    def bits_per_byte(self, mode: str) -> float:
        return self.metrics(mode).bits_per_byte.estimate

    def filtered(self, mode: str) -> list[FilteredScore]:
        """bpb(α)."""
        return [FilteredScore.read(entry) for entry in self.results["filtered"][mode]]

    def by_source(self, mode: str) -> dict[str, Interval]:
        """Bits per byte of every source."""
        return {
            source: Metrics.read(modes[mode]).bits_per_byte
            for source, modes in self.results["sources"].items()
        }

    def document_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"documents/{mode}"]

    def chunk_bits(self, mode: str) -> np.ndarray:
        return self.arrays[f"chunks/{mode}"]

    def expect(self, model_fingerprint: str, neighbours: Neighbours, command: str = COMMAND) -> None:
        """Refuse if the model is another now, or if `neighbours` are not those that were scored with.

        Pinned neighbours are, unless some of them have been deleted since.
        """
        inputs = self.artifact.inputs
        changed = ["other model"] if inputs["model"] != model_fingerprint else []
        if inputs["neighbours"] != neighbours.fingerprint or _num_deleted(neighbours, self.config):
            changed.append("other neighbours")
        if changed:
            raise ArtifactError(
                f"{self.artifact.path} was made with {' and '.join(changed)} than are here now; "
                f"remove it and run: {command}"
            )


def evaluation_folder(work: Path, run: str, name: str) -> Path:
    """The folder for the evaluation of a run on a split, a set or a task: `evaluations/RUN/NAME`.

    It used to be `evaluations/RUN-NAME`, which could also be another run on a set with a longer
    name. Such an older folder is used if its manifest names this run.
    """
    # The run's fingerprint is in both manifests. A run without a manifest was not trained here.
    former = work / "evaluations" / f"{run}-{name}"
    manifests = [folder / MANIFEST for folder in (former, work / "runs" / run)]
    if all(manifest.exists() for manifest in manifests):
        trained = read_object(manifests[1], "restore it, or remove the run and train again")
        if recorded_inputs(former).get("model") == trained.get("fingerprint"):
            return former
    return work / "evaluations" / run / name


def version_note(artifact: Artifact, datastore: Datastore) -> str:
    """A line for the user if scores were made with an earlier version of the datastore; empty otherwise."""
    # Without a recorded version there is nothing to compare.
    made = artifact.counts.get(VERSION)
    now = datastore.snapshot().version.number
    if made in (None, now):
        return ""
    return (
        f"{artifact.path} was made with version {made} of the datastore, which is at version {now} now; "
        "to score with what it holds today, remove that folder and run the same command again"
    )


def evaluate(
    model: LanguageModel,
    model_fingerprint: str,
    neighbours: Neighbours,
    path: Path,
    config: EvaluationConfig,
    progress: Progress = no_progress,
    facts: dict[str, Any] | None = None,
    command: str = COMMAND,
    executor: Executor | None = None,
    opening: Opening | None = None,
) -> Evaluation:
    """Score the neighbours' token store with the model. After an interruption, score only what is missing.

    An evaluation keeps the neighbours it was started with. If it is finished and differs in its
    values of k alone, those that it lacks are added to it: the result is that of scoring all of
    them at once. `facts` about the documents are copied into the results, and stay what they were
    when the first k was scored; `command` is what a user runs for this evaluation. Where the executor has
    processes of its own, `opening` opens the model there.
    """
    store = neighbours.store
    expect_documents(path, store, command)
    former = _with_other_k(path, config)
    if former is not None:
        config = _joined(former.config, config)
    ks = config.num_neighbours if model.facts.retrieves else ()
    begun_with = _begun_with(path, neighbours)
    # Checked before the first window, not after hours of scoring without retrieval, and before anything is
    # begun that would have to be removed.
    expect_readable(config, model.facts)
    expect_saved(begun_with or neighbours, max(ks, default=0))
    kept = dict(facts or {})
    if former is not None:
        kept |= {name: former.results[name] for name in kept if name in former.results}
    is_to_score = former is not None and former.config != config
    if begun_with is not None and (is_to_score or not _is_history(path, begun_with)):
        _expect_all_there(path, begun_with, config, command)

    def work(stage: Stage) -> None:
        # Pinned before anything is scored, so that all parts of an evaluation see the same
        # neighbours.
        pinned = begun_with or pin(neighbours, stage.file(NEIGHBOURS))
        if pinned.artifact.path != stage.file(NEIGHBOURS):
            # They are those of the finished evaluation that this one replaces. A kill may have
            # left some of them here.
            shutil.rmtree(stage.file(NEIGHBOURS), ignore_errors=True)
            shutil.copytree(pinned.artifact.path, stage.file(NEIGHBOURS), copy_function=link_or_copy)
        modes = {OFF: 0, **{on(k): k for k in ks}}
        missing = {mode: k for mode, k in modes.items() if former is None or mode not in former.modes}
        # Parts are named by number alone, so each set of modes needs a folder of its own.
        parts = Parts(stage.scratch("bits-" + "-".join(map(str, missing.values()))), ARRAY)
        at_modes = at_step(progress, ", ".join(missing))
        scored = score_modes(
            model, store, config, pinned, list(missing.values()), at_modes, parts, executor, opening
        )
        bits = {}
        for mode, k in modes.items():
            if mode in missing:
                bits[mode] = Bits(scored[k].by_document(), scored[k].by_chunk(pinned.table))
            else:
                assert former is not None
                bits[mode] = Bits(former.document_bits(mode), former.chunk_bits(mode))
        arrays, results = _summarise(bits, pinned, config)
        with stage.write("scores.npz") as file:
            np.savez(file, allow_pickle=False, **arrays)
        with stage.write("results.json") as file:
            file.write(json.dumps(results | kept, indent=2).encode())
        stage.counts.update(documents=len(store), tokens=len(store.tokens), bytes=int(store.num_bytes.sum()))
        stage.counts[VERSION] = pinned.version

    # An evaluation is opened or resumed with the neighbours it was started with, not with
    # today's.
    inputs = {
        "model": model_fingerprint,
        "tokens": store.fingerprint,
        "neighbours": (begun_with or neighbours).fingerprint,
    }
    renew = former is not None and former.artifact.inputs == inputs
    return Evaluation(run_stage(path, "evaluation", config.settings(), inputs, work, command, renew))


def expect_documents(path: Path, store: TokenStore, command: str = COMMAND) -> None:
    """Refuse an evaluation, finished or begun, of other documents than the store holds now."""
    if recorded_inputs(path).get("tokens") in (None, store.fingerprint):
        return
    place = path if path.exists() else partial_of(path)
    pinned = place / NEIGHBOURS
    is_pinned = (pinned / MANIFEST).exists()
    if not is_pinned and not path.exists():
        return  # killed before anything was scored: nothing is lost by beginning again
    changed = _what_changed(open_artifact(pinned, "neighbours", COMMAND), store) if is_pinned else ""
    raise ArtifactError(
        f"{place} was made with other documents than {store.artifact.path} holds now{changed}; "
        f"{way_out(with_paths(command, path))}"
    )


def _what_changed(artifact: Artifact, store: TokenStore) -> str:
    """How many documents are others than those that the neighbours were found for."""
    artifact.expect_whole("documents.npy")
    before = Counter(np.load(artifact.file("documents.npy"))[:, 0].tolist())
    now = Counter(content_hashes(store).tolist())
    num_new = (now - before).total()
    num_gone = (before - now).total()
    if not num_new and not num_gone:
        return " (the same texts with other names, sources or tokens)"
    return (
        f" ({num_new:,} of {now.total():,} are new or changed, {num_gone:,} of {before.total():,} are gone)"
    )


def _is_history(path: Path, pinned: PinnedNeighbours) -> bool:
    """Whether finished scores stand even if neighbours are gone: the text has changed since.

    What was deleted by name was taken out on purpose, and scores that it had a part in are not shown.
    """
    versions = pinned.datastore.ledger.versions()
    is_taken_out = any(version.number > pinned.version and version.action == "delete" for version in versions)
    return path.exists() and not is_taken_out


def _expect_all_there(path: Path, pinned: PinnedNeighbours, config: EvaluationConfig, command: str) -> None:
    """Refuse to score with neighbours of which some are gone."""
    if _num_deleted(pinned, config):
        raise ArtifactError(
            f"{path} was made with other neighbours than are here now, as some were deleted from the "
            f"datastore; remove {pinned.artifact.path.parent} and run: {with_paths(command, path)}"
        )


def _with_other_k(path: Path, config: EvaluationConfig) -> Evaluation | None:
    """The finished evaluation of this place, if its values of k are the only setting that differs."""
    # One from before its neighbours were pinned says too little of what it was made with.
    if not (path / NEIGHBOURS / MANIFEST).exists():
        return None
    former = Evaluation.open(path)
    other = replace(former.config, num_neighbours=config.num_neighbours) == config
    return former if other and former.config != config else None


def _joined(former: EvaluationConfig, config: EvaluationConfig) -> EvaluationConfig:
    """The settings with every k that was scored or is asked for; in the order that is asked for if it has
    all."""
    scored, asked = former.num_neighbours, config.num_neighbours
    if set(asked) <= set(scored):
        return former
    if set(scored) <= set(asked):
        return config
    return replace(config, num_neighbours=tuple(dict.fromkeys((*scored, *asked))))


def _begun_with(path: Path, neighbours: Neighbours) -> PinnedNeighbours | None:
    """The neighbours of the evaluation that was finished or started in this folder, if there is one."""
    # A finished stage is at `path`; an unfinished one is in the `.partial` folder beside it.
    for folder in (path, partial_of(path)):
        found = open_pinned(folder / NEIGHBOURS, neighbours.store, neighbours.datastore)
        if found is not None:
            return found
    return None


def _num_deleted(neighbours: Neighbours, config: EvaluationConfig) -> int:
    """How many of the neighbours that an evaluation reads have been deleted since they were pinned."""
    # Neighbours that are not pinned change their fingerprint with every deletion, so need no
    # counting.
    if not isinstance(neighbours, PinnedNeighbours):
        return 0
    return neighbours.num_deleted(max((config.leakage_neighbours, *config.num_neighbours)))


@dataclass(frozen=True)
class Bits:
    """What a mode needs of its scores: the bits of every document and of every chunk."""

    by_document: np.ndarray
    by_chunk: np.ndarray


def _summarise(
    bits: dict[str, Bits], neighbours: Neighbours, config: EvaluationConfig
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays that comparisons need, and the results as JSON."""
    store, table, tokenizer = neighbours.store, neighbours.table, neighbours.datastore.tokenizer
    sizes = Sizes.of(store, tokenizer)
    chunks = {
        "num_bytes": chunk_bytes(table, tokenizer),
        "overlaps": chunk_overlaps(neighbours, config.leakage_neighbours),
        "documents": table.documents,
    }
    documents = {
        "document_bytes": sizes.num_bytes,
        "document_tokens": sizes.num_tokens,
        "document_words": sizes.num_words,
    }
    by_document = {mode: found.by_document for mode, found in bits.items()}
    by_chunk = {mode: found.by_chunk for mode, found in bits.items()}
    results = {
        "modes": {mode: asdict(measure(found, sizes)) for mode, found in by_document.items()},
        "sources": _by_source(by_document, sizes, neighbours),
        "overlap": [asdict(part) for part in overlap_histogram(chunks["overlaps"], chunks["num_bytes"])],
        "filtered": {
            mode: [asdict(entry) for entry in filtered_bits_per_byte(found, **chunks)]
            for mode, found in by_chunk.items()
        },
    }
    arrays = {**chunks, **documents}
    arrays |= {f"documents/{mode}": found for mode, found in by_document.items()}
    arrays |= {f"chunks/{mode}": found for mode, found in by_chunk.items()}
    return arrays, results


def _by_source(
    by_document: dict[str, np.ndarray], sizes: Sizes, neighbours: Neighbours
) -> dict[str, dict[str, Any]]:
    """Metrics of every source in every mode."""
    sources = neighbours.store.documents.column("source")
    found: dict[str, dict[str, Any]] = {}
    for source in sorted(set(sources.tolist())):
        # Documents of this source only; intervals are then over these documents.
        own = sources == source
        found[source] = {mode: asdict(measure(bits, sizes, own)) for mode, bits in by_document.items()}
    return found
