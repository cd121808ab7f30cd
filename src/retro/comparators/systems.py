"""The rows that there are, by name: what each does with a model, and which system of the literature it stands
for."""

import re
from dataclasses import dataclass

from retro.errors import ConfigError


@dataclass(frozen=True)
class RowName:
    """A row's name in its parts."""

    kind: str
    k: int = 0
    """Neighbours that are read."""
    every: int = 0
    """Tokens between two searches; 0: a chunk."""

    @property
    def pattern(self) -> str:
        """The name with letters for its numbers."""
        return self.kind + ("-K" if self.k else "") + ("-every-N" if self.every else "")


@dataclass(frozen=True)
class System:
    """What a row does, and how far it is what others have published."""

    does: str
    stands_for: str
    differs: str
    """What of that system is not reproduced."""
    forgetting: str
    """What happens when a document must be forgotten."""


DELETED = "deleted from the datastore it is gone at the next search, and every bit is as if it had never been"
UNKEYED = "its keys are taken out of the memory; weight and sharpness stay as they were chosen"
ROWS = {
    "off": System(
        "the model without retrieval",
        "the baseline",
        "size and data",
        "what the weights have learned of it stays",
    ),
    "on-K": System(
        "the model with K neighbours",
        "RETRO; on a pretrained base, RETROfitting",
        "size and data; a pretrained base reads neighbours by its own attention and a pointer, unless it was "
        "fitted with the paper's cross-attention",
        DELETED,
    ),
    "plus-K": System(
        "the model with K neighbours, and the nearest of them in its prompt as well",
        "RETRO++",
        "RETRO++ is trained with a neighbour in its prompt, this model never saw one there; it reads the "
        "nearest one twice",
        DELETED,
    ),
    "prompt-K": System(
        "K neighbours in the prompt, read again with the text at every chunk",
        "RALM in context; REALM and RAG at their simplest",
        "REALM and RAG train the retriever with the model, and RAG sums over passages; nothing is trained",
        DELETED,
    ),
    "prompt-K-every-N": System(
        "the same with those that are found every N tokens",
        "RALM in context, at a stride of its own",
        "its reranking of what was found",
        DELETED,
    ),
    "bm25-K": System(
        "K neighbours in the prompt that BM25 finds, by the tokens of each chunk",
        "RALM in context with BM25",
        "its query of the last 32 tokens; here it is a chunk",
        "it is taken out of datastore and index, and is gone at the next search",
    ),
    "lora": System(
        "the model tuned on the training text for a given time",
        "fine-tuning (LoRA)",
        "tuned for the time that the others have, not to the end",
        "it stays in the weights: the model is tuned again without it",
    ),
    "knn": System(
        "kNN-LM with a memory of the training tokens that are read in a given time",
        "kNN-LM",
        "a key for every training token, which retro knn has",
        UNKEYED,
    ),
    "spalm": System(
        "the same with a learned gate in place of one weight",
        "SPALM",
        "its gate mixes states within the model and is trained with it; its short-term memory",
        UNKEYED,
    ),
    "cache": System(
        "the continuous cache over the window's own past",
        "the continuous cache",
        "a past that is longer than the window",
        "nothing is left of a document once it ends",
    ),
}
"""All rows, with K for a number of neighbours and N for one of tokens."""
ELSEWHERE = {
    "FiD": "reads many passages of a question, each for itself, and answers from all of them: it has no row, "
    "as text without questions is scored here; retro evaluate --task questions --readings fused has it",
}
"""Systems that the paper names and no row stands for, and why."""
_PARTS = re.compile(r"(?P<kind>[a-z0-9]+)(-(?P<k>[1-9][0-9]*))?(-every-(?P<every>[1-9][0-9]*))?")


def read_row(row: str) -> RowName:
    """A row's name in its parts; a name that is none is refused."""
    found = _PARTS.fullmatch(row)
    name = RowName(found["kind"], int(found["k"] or 0), int(found["every"] or 0)) if found else RowName("")
    if name.pattern not in ROWS:
        raise ConfigError(
            f"there is no row {row!r}; expected one of {', '.join(ROWS)}, with numbers for K and N"
        )
    return name


def system_of(row: str) -> System:
    """What is known of a row, by its name."""
    return ROWS[read_row(row).pattern]
