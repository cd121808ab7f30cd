"""One table: everything that a user waits for, beside a rival and the limit of the machine (`make bench`).

    python benchmarks/run.py [PART …] [--out bench] [--again] [--quick]

Parts: keys, neighbours, training, scoring, sampling, starting, installation, memory. Each runs in a process
of its own and leaves PART.json in the folder; one that is there is not measured again without `--again`.
What is needed of the catalogue is fetched first. At the end all that is there is printed as a table in
Markdown and written to `speed.html`. `--quick` takes tiny sizes and one round, to see that a part runs; its
numbers mean nothing.
"""

import argparse
import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from speed.page import table_page
from speed.rows import Row, markdown

from retro.pages.shell import Made

PARTS = (
    "keys",
    "neighbours",
    "training",
    "scoring",
    "sampling",
    "starting",
    "installation",
    "memory",
)


def measure(part: str, out: Path, quick: bool) -> None:
    """Measure a part in this process and leave its rows."""
    started = time.monotonic()
    rows: list[Row] = importlib.import_module(f"speed.{part}").measure(out / "work", quick)
    record = {
        "part": part,
        "quick": quick,
        "seconds": time.monotonic() - started,
        "rows": [row.record() for row in rows],
    }
    path = out / f"{part}.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    temporary.replace(path)


def run(parts: list[str], out: Path, again: bool, quick: bool) -> dict[str, str]:
    """Measure what is not there, each part in its own process; what could not be measured, and why."""
    failed: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        at = f"[{number}/{len(parts)}] {part}"
        if (out / f"{part}.json").exists() and not again:
            print(f"{at}: was measured before (--again measures it again)", flush=True)
            continue
        print(f"{at} …", flush=True)
        started = time.monotonic()
        command = [sys.executable, __file__, part, "--out", str(out), "--inside"]
        done = subprocess.run([*command, *(["--quick"] if quick else [])], check=False)
        if done.returncode:
            failed[part] = f"this part ended with exit code {done.returncode}"
        print(f"{at}: {failed.get(part, 'done')} after {time.monotonic() - started:.0f} s", flush=True)
    return failed


def records(out: Path) -> dict[str, Any]:
    """What was measured, in the order of the parts."""
    paths = {part: out / f"{part}.json" for part in PARTS}
    return {part: json.loads(path.read_text()) for part, path in paths.items() if path.exists()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--out", type=Path, default=Path("bench"))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted(set(options.parts) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; expected some of {', '.join(PARTS)}")
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.inside:
        measure(options.parts[0], out, options.quick)
        return
    failed = run(options.parts or list(PARTS), out, options.again, options.quick)
    found = records(out)
    rows = {part: [Row.read(row) for row in record["rows"]] for part, record in found.items()}
    command = "python benchmarks/run.py" + "".join(f" {part}" for part in options.parts)
    made = Made(command, "made-up text, and what the catalogue has: enwik8, licences, SmolLM2")
    (out / "speed.html").write_text(table_page(rows, failed, made))
    print()
    print(markdown([row for some in rows.values() for row in some]))
    seconds = sum(record["seconds"] for record in found.values())
    print(f"\nmeasured in {seconds / 60:.1f} minutes; {out / 'speed.html'}")
    if failed:
        sys.exit(f"not measured: {', '.join(failed)}; run the command again for these")


if __name__ == "__main__":
    main()
