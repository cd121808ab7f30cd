"""All benchmarks with all that they print, one after the other: `make bench-every`; the table is `run.py`."""

import runpy
from pathlib import Path

BENCHMARKS = (
    "training_step",
    "attention",
    "utilisation",
    "sampling",
    "decontamination",
    "ingest",
    "ingest_memory",
    "embedding",
    "index",
    "datastore",
    "overlap",
    "scoring",
    "serving",
)


def main() -> None:
    for name in BENCHMARKS:
        print(f"# {name}")
        runpy.run_path(str(Path(__file__).parent / f"{name}.py"), run_name="__main__")


if __name__ == "__main__":
    main()
