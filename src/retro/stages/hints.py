"""Commands that messages tell to run, with the user's own paths in them.

A message is often made where only a folder is known, such as that of a datastore. Its command is written
with the placeholders WORK, RUN and SOURCE. The folder's place in its workspace says what the first two are,
and the record of what was ingested there, the third.
"""

import json
import shlex
from pathlib import Path

CORPUS = ("text", "tokenizer", "encoded", "tokens")
PARTS = (*CORPUS, "datastore", "neighbours", "runs", "evaluations", "sets", "knn")
"""The folders of a workspace."""
HOLDERS = ("datastore", "runs", "evaluations", "sets")
"""Those that hold folders which are called like parts."""
OF_RUNS = ("runs", "evaluations", "knn")
"""Those with a folder for each run."""
ANYWHERE = ("evaluations", "sets")
"""Those of them that are also made outside of a workspace."""

FIELDS = "fields."
"""What the names of a text's inputs begin with that are fields of a record, and no sources."""


def with_paths(command: str, path: Path) -> str:
    """The command with what is known around `path`: the workspace for WORK, the run, and the sources."""
    work, run = _around(path)
    known = {
        "WORK": work and quoted(work),
        "RUN": run and quoted(run),
        "SOURCE": work and _ingested(work / "text"),
    }
    return " ".join(known.get(word) or word for word in command.split(" "))


def quoted(path: str | Path) -> str:
    """A path or a name as a shell reads it, spaces and all."""
    return shlex.quote(str(path))


def _ingested(text: Path) -> str:
    """The sources of a workspace's text as a command names them, with their fields; else empty."""
    for record in (text / "manifest.json", text.with_name(f"{text.name}.partial") / "plan.json"):
        try:
            inputs = json.loads(record.read_text())["inputs"]
            words = [str(name) for name in inputs if not name.startswith(FIELDS)]
            words += [f"--{name}={inputs[name]}" for name in inputs if name.startswith(FIELDS)]
        except (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError):
            continue  # not there, or damaged: the placeholder stays
        return shlex.join(words)
    return ""


def _around(path: Path) -> tuple[Path | None, str]:
    """The workspace that a path lies in, and the name of the run that it belongs to."""
    parts = [folder for folder in (path, *path.parents) if _name(folder) in PARTS and not _is_within(folder)]
    if not parts:
        return None, ""
    part = parts[0]
    below = path.relative_to(part).parts
    run = below[0].removesuffix(".partial") if below and _name(part) in OF_RUNS else ""
    is_work = _name(part) not in ANYWHERE or (part.parent / "tokens").exists()
    return (part.parent if is_work else None), run


def _is_within(folder: Path) -> bool:
    """Whether a folder lies in another part: a run has its own tokenizer, an evaluation its neighbours."""
    work = folder.parent
    if (work / "tokens").exists() and (work / "tokenizer").exists():
        return False  # a whole workspace, wherever it is
    return any(_name(parent) in HOLDERS for parent in list(folder.parents)[:4])


def _name(folder: Path) -> str:
    return folder.name.removesuffix(".partial")
