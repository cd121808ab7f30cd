"""Writing a base as `transformers` reads it: config, weights, tokenizer, and where all that comes from."""

from pathlib import Path
from typing import Any

import numpy as np

from retro.catalogue.bases.gguf import gguf_library, read_gguf
from retro.catalogue.bases.llama import Llama
from retro.catalogue.bases.llama2c import read_llama2c
from retro.catalogue.entry import Entry
from retro.errors import RetroError
from retro.stages.files import atomic_path, write_json
from retro.stages.progress import Progress
from retro.stages.stage import Stage

WEIGHTS = "model.safetensors"
FORMS = {"gguf": ("*.gguf", read_gguf), "llama2.c": ("*.data", read_llama2c)}
"""Which file holds a form, and how it is read."""


def require_extra(entry: Entry) -> None:
    """Refuse to begin what could not be finished for want of an optional package."""
    if entry.form == "gguf":
        gguf_library()


def make_base(entry: Entry, unpacked: Path, stage: Stage, progress: Progress) -> None:
    """Fill a stage's folder with the Hugging Face form of the model whose package was unpacked."""
    pattern, read = FORMS[entry.form]
    found = sorted(unpacked.rglob(pattern))
    if len(found) != 1:
        raise RetroError(
            f"{entry.filename} holds {len(found)} files {pattern}; expected one; report this as a bug"
        )
    llama = read(found[0])
    _write_weights(llama, stage.file(WEIGHTS), progress)
    write_json(stage.file("config.json"), llama.config)
    ids = {key: value for key, value in llama.config.items() if key.endswith("_token_id")}
    write_json(stage.file("generation_config.json"), ids)
    with stage.write("tokenizer.json") as file:
        file.write(llama.tokenizer.encode())
    write_json(stage.file("tokenizer_config.json"), llama.tokenizer_config)
    for licence in unpacked.rglob("LICENSE"):
        with stage.write("LICENSE") as file:
            file.write(licence.read_bytes())
    with stage.write("NOTICE.md") as file:
        file.write(_notice(entry, llama, found[0].name).encode())
    stage.counts["weights"] = llama.num_weights


def _write_weights(llama: Llama, path: Path, progress: Progress) -> None:
    if path.exists():  # written whole by a run that was killed behind it
        return
    from safetensors.numpy import save_file

    weights: dict[str, np.ndarray] = {}
    for name, values in llama.weights():
        weights[name] = values
        progress(len(weights), llama.num_weights, "Making float32 weights")
    with atomic_path(path) as temporary:
        # Sorted, so that the same weights are the same bytes everywhere.
        save_file(dict(sorted(weights.items())), temporary, metadata={"format": "pt"})


def _notice(entry: Entry, llama: Llama, file: str) -> str:
    def line(name: str, value: Any) -> str:
        return f"- {name}: {value}\n"

    text = f"# {entry.name}\n\n{entry.description}.\n\n{llama.about}\n\n"
    text += line("licence", entry.licence)
    text += line("from", f"{file} in {entry.filename} ({entry.registry}, {entry.package} {entry.version})")
    return text + line("sha256 of that package", entry.sha256)
