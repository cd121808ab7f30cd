"""Installation: megabytes on disk of what `pip install retro-lm` brings, and of what each extra adds.

Counted from the files of the packages in this environment, which must hold them. The rival is what a user
needs who embeds, searches and runs a model with the usual libraries and nothing of ours.
"""

from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from speed.rows import Row, Spread

OURS = "retro-lm"
USUAL = ("torch", "transformers", "faiss-cpu", "datasets", "sentencepiece")
EXTRAS = (
    "",
    "serve",
    "eval",
    "bases",
    "bm25",
    "pdf",
    "wikipedia",
    "hf",
    "scann",
    "milvus",
    "scale",
    "harness",
)


def closure(names: set[str], extras: dict[str, set[str]]) -> dict[str, Distribution]:
    """All distributions that these need, by their names; of each only the extras that are asked for."""
    found: dict[str, Distribution] = {}
    waiting = [(name, extra) for name in names for extra in extras.get(name, set()) | {""}]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform or Python, or an extra that is not installed here
        for line in found[name].requires or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                wanted = canonicalize_name(needed.name)
                waiting += [(wanted, other) for other in needed.extras | {""}]
    return found


def megabytes(found: Distribution) -> float:
    """Its files on disk, without what Python compiled of them."""
    paths = [Path(str(file.locate())) for file in found.files or [] if file.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def measure(work: Path, quick: bool) -> list[Row]:
    base = closure({OURS}, {})
    usual = closure(set(USUAL), {})
    sizes = {name: megabytes(one) for name, one in {**base, **usual}.items()}
    rows = []
    for extra in EXTRAS[:2] if quick else EXTRAS:
        found = closure({OURS}, {OURS: {extra}} if extra else {})
        sizes |= {name: megabytes(one) for name, one in found.items() if name not in sizes}
        added = {name: sizes[name] for name in found if not extra or name not in base}
        largest = sorted(added, key=lambda name: -added[name])[:3]
        named = ", ".join(f"{name} {added[name]:,.0f}" for name in largest)
        total = sum(added.values())
        theirs = sum(sizes[name] for name in usual)
        row = Row(
            what=f"installation, what [{extra}] adds" if extra else "installation, without extras",
            size=f"{len(added)} packages: {named}" if named else "0 packages",
            unit="MB",
            ours=_just(total),
            rival="" if extra else ", ".join(USUAL),
            theirs=None if extra else _just(theirs),
            times=None if extra else _just(theirs / total),
        )
        rows.append(row)
    return rows


def _just(value: float) -> Spread:
    return Spread(value, value, value)
