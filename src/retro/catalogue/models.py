"""Pretrained models to put retrieval into: where a base lies, and which one it is."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from retro.catalogue import hub
from retro.catalogue.entries import ENTRIES
from retro.catalogue.fetching import fetch_if_missing, fetched
from retro.errors import DataError
from retro.stages.files import file_checksum, read_object
from retro.stages.progress import Progress, no_progress

CONFIG = "config.json"
WEIGHTS = "*.safetensors"
TOKENIZER_FILES = (CONFIG, "tokenizer.json", "tokenizer_config.json")
"""What cutting text for a base needs of it."""
BASE_FILES = ("*.json", "*.jinja", WEIGHTS, "tokenizer.model", "LICENSE*", "NOTICE*")
"""What a base is opened from. Weights in pickles and Python files are never downloaded: both run code."""
SAYS_NOTHING = ("transformers_version", "_name_or_path", "_model_name_or_path", "_commit_hash")
"""Keys of a config that change from one saving to the next and change nothing in a model."""


def folder_of_base(name: str, progress: Progress = no_progress, files: Sequence[str] = BASE_FILES) -> Path:
    """The folder of a base, by its catalogue name, its folder or its hub id.

    A base of the catalogue is fetched if it is not here; of the hub only `files` are, by their patterns.
    """
    known = ", ".join(entry.name for entry in ENTRIES.values() if entry.kind == "model")
    expected = f"expected a folder, a hub id, or one of: {known}"
    if name in ENTRIES:
        if ENTRIES[name].kind != "model":
            raise DataError(f"{name!r} is no model but {_with_article(ENTRIES[name].kind)}; {expected}")
        fetch_if_missing(name, progress)
        return fetched(name).path
    folder = Path(name)
    if not name or not (folder.exists() or hub.is_id(name)):
        raise DataError(f"{name!r} is no base; {expected}")
    if not folder.exists():
        folder = hub.snapshot(name, files, "model")
    if not (folder / CONFIG).exists():
        raise DataError(
            f"{name} has no {CONFIG}; expected a Hugging Face model; save it with save_pretrained"
        )
    return folder


def base_checksum(folder: Path) -> str:
    """The sha256 of what a base computes with: its config and the bytes of its weights.

    The same base has the same checksum wherever it lies and whatever version of transformers saved its
    config; tokenizer, card and licence do not count.
    """
    weights = sorted(folder.glob(WEIGHTS))
    if not weights:
        raise DataError(
            f"{folder} holds no {WEIGHTS}; expected a model's weights in that form; "
            "open it and save it with save_pretrained"
        )
    config = read_object(folder / CONFIG, "save the model again with save_pretrained")
    says = {key: value for key, value in config.items() if key not in SAYS_NOTHING}
    digest = hashlib.sha256(json.dumps(says, sort_keys=True).encode())
    for file in weights:
        digest.update(f"\0{file.name}\0{file_checksum(file)}".encode())
    return digest.hexdigest()


def embedding_size(folder: Path) -> int:
    """How many token ids a base knows: the rows of its embedding, as its config gives them."""
    config = read_object(folder / CONFIG, "save the model again with save_pretrained")
    # Models of several parts keep the sizes of the one that reads text below a key of its own.
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    if not isinstance(size, int):
        raise DataError(f"{folder / CONFIG} gives no vocab_size; expected the config of a language model")
    return size


def _with_article(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
