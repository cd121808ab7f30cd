"""The road of own text at several sizes: `retro study` on folders of text files, with times and results.

    python benchmarks/own_text.py --minutes 30 licences:0.5 licences:5 enwik8:50

Each argument is a corpus of the catalogue and how many MB of it are written out as a folder of text files,
one for each document, chosen by chance. Every study runs in a process of its own, as a user would start it. A
workspace that is there already is opened again, so that the table can be printed twice.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from retro import catalogue
from retro.corpus.documents import Document, uniform
from retro.corpus.readers import read


def write_folder(corpus: str, megabytes: float, folder: Path) -> None:
    """Documents of a corpus of the catalogue, drawn by chance until they are so many MB together."""
    if folder.exists():
        return
    if corpus in catalogue.ENTRIES:
        catalogue.fetch(corpus)
    documents = sorted(read(corpus), key=_draw)
    folder.mkdir(parents=True)
    num_bytes = 0
    for number, document in enumerate(documents):
        content = document.text.encode()
        if num_bytes + len(content) > 1e6 * megabytes and number:
            continue  # a shorter one may still fit
        (folder / f"{number:06d}.txt").write_bytes(content)
        num_bytes += len(content)


def _draw(document: Document) -> float:
    return uniform("own text", document.source, document.id)


def run(corpus: str, megabytes: float, minutes: float, out: Path) -> list[str]:
    """Study a folder, and return a row of the table."""
    folder = out / f"{corpus}-{megabytes:g}"
    work = out / f"{folder.name}-{minutes:g}-minutes"
    write_folder(corpus, megabytes, folder)
    started = time.perf_counter()
    command = ["study", str(folder), "--out", str(work), "--minutes", f"{minutes:g}"]
    subprocess.run([sys.executable, "-m", "retro", *command], check=True)
    took = (time.perf_counter() - started) / 60
    report = json.loads((work / "report.json").read_text())
    recipe = json.loads((work / "recipe.json").read_text())
    seconds = json.loads((work / "seconds.json").read_text())
    gain = report["comparison"]["gain_over_baseline"]
    model, training = recipe["model"], recipe["training"]
    return [
        f"{corpus} {megabytes:g} MB",
        f"{minutes:g}",
        f"{took:.1f} ({sum(seconds.values()) / 60:.1f})",
        f"{recipe['corpus']['vocab_size']}, {recipe['datastore']['embedder']}, "
        f"{model['num_layers']} × {model['d_model']}, "
        f"{training['num_steps']} × {training['batch_size']} × {training['seq_len']}",
        f"{100 * gain['estimate']:.1f} % ({100 * gain['low']:.1f} to {100 * gain['high']:.1f})",
        report["verdict"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="CORPUS:MB")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path("own_text"))
    options = parser.parse_args()
    rows = []
    for text in options.texts:
        corpus, _, megabytes = text.partition(":")
        rows.append(run(corpus, float(megabytes), options.minutes, options.out))
    print("| text | minutes | took (its parts) | vocabulary, embedder, model, steps | saved | verdict |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
