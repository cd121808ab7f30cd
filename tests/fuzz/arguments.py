"""Arguments of every command, drawn from its own options: fitting, odd, impossible, missing and repeated."""

import importlib
import warnings
from functools import cache
from typing import Any

import tyro
from hypothesis import strategies as st

SMALL_MODEL = """--model.d-model 16 --model.num-layers 2 --model.num-heads 2 --model.head-dim 8
--model.ffw-dim 32 --model.chunk-len 8 --model.retrieval.cross-attention-layers 2
--model.retrieval.encoder.d-model 16
--model.retrieval.encoder.num-layers 1 --model.retrieval.encoder.num-heads 2
--model.retrieval.encoder.head-dim 8 --model.retrieval.encoder.ffw-dim 32"""
FIT = SMALL_MODEL.partition("--model.chunk-len 8 ")[2].replace("--model.retrieval.", "--fit.")
STEPS = "--seq-len 32 --batch-size 2 --num-steps 1 --warmup-steps 1 --log-every 1 --validate-batches 1"
WINDOWS = "--window 32 --stride 16 --num-neighbours 1"
BASES: dict[str, str] = {
    "fetch": "no-entry",
    "ingest": "SOURCE --out OUT --vocab-size 300 --workers 1",
    "tokenizer": "inspect WORK text",
    "decontaminate": "WORK --out OUT --against MORE",
    "build": "WORK --embedder ENCODER --chunk-len 8 --num-neighbours 4 --workers 1",
    "neighbours": "WORK",
    "db info": "WORK",
    "db search": "WORK licence",
    "db add": "WORK MORE",
    "db sync": "WORK MORE",
    "db delete": "WORK --id 00.txt",
    "db compact": "WORK",
    "db verify": "WORK --sample 2",
    "db engine": "WORK local",
    "train": f"WORK --name fuzzed {SMALL_MODEL} {STEPS}",
    "fit": f"WORK --baseline baseline --name fuzzed {FIT} {STEPS}",
    "fit --base": f"no-base WORK --name fuzzed {STEPS}",
    "fit --from": f"no-run WORK --name fuzzed {STEPS}",
    "fit --task qa": f"WORK --from retro --name fuzzed --questions QUESTIONS {STEPS} --seq-len 128",
    "evaluate": f"WORK retro --split valid {WINDOWS}",
    "evaluate --documents": f"2 WORK retro --rows on-1 knn --seconds 0 {WINDOWS}",
    "evaluate --task questions": "WORK retro --on QUESTIONS --num-passages 1 --max-tokens 2",
    "inspect": "WORK retro --out OUT.html --num-neighbours 1",
    "knn": "WORK baseline --evaluation.window 32 --evaluation.stride 16",
    "sample": "WORK licence --max-tokens 3",
    "answer": "WORK retro licence --max-tokens 2",
    "doctor": "--work WORK",
    "reproduce": "no-experiment --out OUT",
    "demo": "--out OUT --recipe no-recipe",
    "study": "OWN --out OUT --embedder ENCODER --minutes 5",
    "study --fitted": "OWN --out OUT --embedder ENCODER --model no-run",
    "plan": "--tokens 1M --embedder no-embedder --recipe no-recipe",
    "harness": "WORK retro --tasks no-task",
    "serve": "WORK --name no-run --port 0",
    "mirror": "info memory://bucket/work --folder OUT",
}
"""A call of each command that would do little; what is drawn comes after it and changes it."""
LONG = {
    "--num-steps",
    "--max-tokens",
    "--samples",
    "--sample",
    "--validate-batches",
    "--warmup-steps",
    "--sample-tokens",
    "--evaluation.stride",
    "--stride",
}
"""Options for which a large number is a long wait, as it should be, and no mistake."""
LEFT_OUT = {"--executor", "--help", "-h", "--recipe", "names", "--compile", "--fitted", "--from-scratch"}
"""Ray takes long to start; recipes and experiments that exist take hours. What checks the shapes of tensors
in the tests cannot be compiled; tests/training has compiling by itself. What comes with the package would
fetch its base."""
PLACES = [
    "WORK",
    "WORK/datastore",
    "WORK/runs/retro",
    "SOURCE",
    "FILE",
    "MISSING",
    "FILE/below",
    "/proc/below",
]
PLACES += ["", "OUT", "OUT/é雨", "WORK/tokens", "/dev/null", "x" * 300, "a\nb", "OUT/" + "deep/" * 40 + "x"]
SMALL = ["-1", "0", "1", "2", "3"]
LARGE = ["7", "64", "1000000", "10000000000", "99999999999999999999999", "-99999999999999999999"]
FRACTIONS = ["0.5", "0", "1", "-0.1", "1.5", "1e-9", "1e308", "nan", "inf", "-inf", "1e999"]
WORDS = [
    "",
    "x",
    "é雨",
    "\udcff",
    "[bold]",
    "--",
    "-",
    "-x",
    "a/b",
    "..",
    "retro",
    "a b",
    "nan",
    "text",
    "{}",
    "%s",
]


@cache
def options_of(command: str) -> list[Any]:
    """The parser's own list of a command's options."""
    if command.startswith("db "):
        found = importlib.import_module("retro.cli.db").ACTIONS[command.removeprefix("db ")][0], None
    else:
        found = _parsed(command)
    given = {} if found[1] is None else {"default": found[1]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(found[0], config=(tyro.conf.AvoidSubcommands,), **given)
    names = LEFT_OUT - ({"--recipe"} if command in ("train", "evaluate") else set())
    return [action for action in parser._actions if not names & {*action.option_strings, action.dest}]


class _ParsedError(Exception):
    """Carries a command's options out of its `main`."""


def _parsed(command: str) -> tuple[Any, Any]:
    name, *rest = command.split()
    module = importlib.import_module(f"retro.cli.{name}")

    def stop(options: Any, _arguments: Any, _command: str, default: Any = None) -> None:
        raise _ParsedError(options, default)

    real, module.parse = module.parse, stop  # type: ignore[attr-defined]
    try:
        module.main(rest)
    except _ParsedError as found:
        return found.args[0], found.args[1]
    finally:
        module.parse = real  # type: ignore[attr-defined]
    raise AssertionError(f"retro {command} reads no options")


def values_of(action: Any) -> st.SearchStrategy[str]:
    """What may be given to an option: what fits its type more often than not."""
    kind = str(action.metavar or "").upper()
    odd = st.sampled_from([*WORDS, *SMALL])
    if "INT" in kind:
        fitting = SMALL if LONG & set(action.option_strings) else [*SMALL, *LARGE]
    elif "FLOAT" in kind:
        fitting = FRACTIONS
    elif "PATH" in kind:
        fitting = PLACES
    elif action.choices:
        fitting = [str(choice) for choice in action.choices]
    else:
        fitting = [*WORDS, *PLACES]
    some = st.sampled_from(fitting)
    return st.one_of(some, some, some, odd)


@st.composite
def arguments(draw: st.DrawFn, command: str) -> list[str]:
    """A command line: the usual one with some options more, less, twice, without a value or unheard of."""
    words = BASES[command].split()
    if draw(st.integers(0, 9)) == 0:
        place = draw(st.integers(0, len(words) - 1))
        words = words[:place] + words[place + 1 :]
    elif draw(st.integers(0, 9)) == 0:
        words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from([*WORDS, *PLACES, *SMALL]))
    for _ in range(draw(st.integers(0, 3))):
        words += draw(_option(command))
    return [*command.split(), *words]


@st.composite
def _option(draw: st.DrawFn, command: str) -> list[str]:
    action = draw(st.sampled_from(options_of(command)))
    name = list(action.option_strings[:1])
    if action.option_strings and draw(st.integers(0, 14)) == 0:
        name = [draw(st.sampled_from([*name, f"{name[0]}=", "--no-such-option", name[0][:-1]]))]
    # Flags take none; lists take several.
    takes = 0 if action.nargs == 0 else 1
    if action.nargs in ("*", "+"):
        takes = draw(st.integers(0, 3))
    elif draw(st.integers(0, 19)) == 0:
        takes = draw(st.integers(0, 2))
    return name + [draw(values_of(action)) for _ in range(takes)]
