"""The command table.

A command's module is imported only when it is run, and it imports torch only after its options are read.
"""

import importlib
import io
import os
import sys
import traceback

import retro
from retro.cli.addresses import Named, with_mirrors
from retro.cli.explaining import explain, unexpected
from retro.stages.remote.address import MirrorError

COMMANDS = {
    "demo": "everything on built-in defaults: a pretrained model reads a manual; or RETRO from scratch",
    "study": "your own text to a report, planned by its size and your minutes; or --fitted, untrained",
    "fetch": "download a corpus or an embedder of the catalogue",
    "ingest": "text → tokenizer and tokens, split and decontaminated",
    "tokenizer": "see how a tokenizer cuts a text, and how well it fits each source",
    "decontaminate": "remove training documents close to an evaluation set, or named in a list",
    "build": "tokens → datastore",
    "neighbours": "find the neighbours of every chunk",
    "db": "work with a datastore: info, search, add, sync, delete, compact, verify",
    "train": "train RETRO, or its baseline",
    "fit": "RETROfit: add retrieval to a baseline, or to a pretrained model (--base, --from), and train only "
    "that; --task qa fine-tunes on questions, --check says what a pretrained model can be fitted with",
    "evaluate": "score a run: bits per byte on any documents, or a task, without and with retrieval",
    "inspect": "show what retrieval saved on every token of a document, beside its neighbours",
    "knn": "compare a baseline with kNN-LM and a continuous cache on top of it",
    "harness": "run tasks of lm-evaluation-harness",
    "sample": "continue a text and show the neighbours it used",
    "serve": "OpenAI's API and a page over a run, with the sources of every answer",
    "answer": "answer questions from passages of a datastore or a file, or from the weights alone",
    "plan": "what a corpus of any size would take: disk, memory, hours and machines",
    "reproduce": "the paper's tables and figures, and its claims as a checklist",
    "mirror": "see to the mirror of a workspace at an address: info, pull, push, unlock",
    "doctor": "say what is installed and what is missing",
}

COMPUTING = ("demo", "study", "ingest", "build", "neighbours", "train", "fit", "evaluate", "knn", "reproduce")
"""Commands that compute in large batches for minutes, perhaps beside others on the machine."""
SPINS = "1000"
"""How often a thread of OpenMP looks for work before it sleeps. By default it looks for milliseconds, and
keeps the core from whoever could use it: `benchmarks/busy_machine.py`."""


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    head = "usage: retro COMMAND [options]    retro COMMAND --help shows more"
    return f"{head}\n\n{rows}\n\nRETRO_DEBUG=1 shows the trace of an error."


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code is 0, 1 for an error, 2 for wrong usage."""
    arguments = sys.argv[1:] if arguments is None else arguments
    # What cannot be printed, such as a path that is not UTF-8, is an escape there as on standard error.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        print(f"retro {retro.__version__}")
        return 0
    command = arguments[0]
    if command not in COMMANDS:
        print(
            f"retro: there is no command {command!r}; expected one of {', '.join(COMMANDS)}; "
            "run: retro --help",
            file=sys.stderr,
        )
        return 2
    if command in COMPUTING:
        share_cores()
    name_addresses: Named = str
    try:
        with with_mirrors(command, arguments[1:]) as (found, name_addresses):
            importlib.import_module(f"retro.cli.{command}").main(found)
    except SystemExit as stop:  # tyro has printed help or a usage error
        return stop.code if isinstance(stop.code, int) else 2
    except BrokenPipeError:  # whoever read our output has closed it
        # Python flushes standard output on exit, and would complain about the broken pipe then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 — nothing may end in a trace
        message = explain(error) or unexpected(error)
        if not isinstance(error, MirrorError):  # which names the folder as well
            message = name_addresses(message)
        if os.environ.get("RETRO_DEBUG"):
            traceback.print_exc()
        print(f"retro {command}: {message}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):  # such as that what was made could not be pushed
            print(f"retro {command}: {note}", file=sys.stderr)
        return 1
    return 0


def share_cores() -> None:
    """Let waiting threads give their core away, unless the user has said how they are to wait.

    OpenMP reads this when torch is loaded, so it comes before any command is imported. Sampling is left as it
    is: its products are so small that waking a thread takes longer than they do.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
