"""New articles: which documents of a set are new to the datastore, and how each group scores.

The paper's appendix takes articles that were written or heavily edited after its data was
collected, and leaves out those that rely on templates, recognised by chunks with a high overlap
with their neighbours. Here a rule does the same: a document whose title is in the datastore is
a *later edition*, any other with many overlapping chunks is *templated*, and the rest are
*new*. The text itself is cleaned by `corpus/wikitext.py`.
"""

from dataclasses import dataclass

import numpy as np

from retro.corpus.decontamination import title_key
from retro.retrieval.datastore import Datastore
from retro.retrieval.datastore.ledger import IS_THERE, NEWEST
from retro.scoring.evaluate import VERSION, Evaluation
from retro.scoring.intervals import Interval, bootstrap_ratio
from retro.scoring.sets import EvaluationSet

NEW, LATER, TEMPLATED = "new", "later edition", "templated"
HIGH_OVERLAP = 0.5
"""A chunk that shares more than this part of its length with a neighbour counts as a
template."""
TEMPLATED_SHARE = 0.25
"""A document with more than this part of such chunks is templated. Both numbers are ours; the paper
gives none."""


@dataclass(frozen=True)
class Group:
    """The documents of one kind, with their bits per byte in every mode."""

    name: str
    documents: int
    num_bytes: int
    bits_per_byte: dict[str, Interval]


def kinds_of(found: EvaluationSet, overlaps: np.ndarray, version: int = NEWEST) -> np.ndarray:
    """The kind of every document of a set, by its title and the overlaps of its chunks.

    Titles are those of the version of the datastore that the overlaps were measured with.
    """
    # Documents without a title must not all match each other.
    known = _title_keys(found.neighbours.datastore, version) - {""}
    later = np.array([title_key(row["title"]) in known for row in found.store.documents])
    # A document's chunks are contiguous in the table, up to the first chunk of the next
    # document.
    firsts = found.neighbours.table.first
    num_high = np.add.reduceat((overlaps > HIGH_OVERLAP).astype(np.float64), firsts[:-1])
    share = num_high / np.diff(firsts)
    return np.where(later, LATER, np.where(share > TEMPLATED_SHARE, TEMPLATED, NEW))


def _title_keys(datastore: Datastore, version: int) -> frozenset[str]:
    """The titles of a version's documents, in the form in which titles are compared."""
    # A compaction takes the rows of deleted documents away; their titles are then unknown.
    rows = datastore.ledger.rows(f"SELECT DISTINCT title FROM documents WHERE {IS_THERE}", (version, version))
    return frozenset(title_key(title) for (title,) in rows)


def by_kind(found: EvaluationSet, evaluation: Evaluation) -> list[Group]:
    """The groups that have documents, in this order: new, later edition, templated."""
    version = evaluation.artifact.counts.get(VERSION) or NEWEST
    kinds = kinds_of(found, evaluation.arrays["overlaps"], version)
    num_bytes = found.store.num_bytes
    groups = []
    for name in (NEW, LATER, TEMPLATED):
        own = kinds == name
        if own.any():
            scores = {
                mode: bootstrap_ratio(evaluation.document_bits(mode)[own], num_bytes[own])
                for mode in evaluation.modes
            }
            groups.append(Group(name, int(own.sum()), int(num_bytes[own].sum()), scores))
    return groups
