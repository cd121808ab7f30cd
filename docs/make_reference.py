"""Write docs/reference from the code: `commands.md` and `python.md`. A test checks that both are current.

Commands are read from their own parsers, as `--help` shows them; Python's names from what `retro` exports.
"""

import ast
import importlib
import inspect
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tyro

import retro
from retro import catalogue, config, recipes
from retro.cli import db
from retro.cli.main import COMMANDS

FOLDER = Path(__file__).parent / "reference"
WRITTEN = "Written by `make docs` from the code. Do not edit."
CONFIGS = (
    "RunConfig",
    "ModelConfig",
    "EncoderConfig",
    "RetrievalConfig",
    "CorpusConfig",
    "DatastoreConfig",
    "TrainingConfig",
    "EvaluationConfig",
    "KnnConfig",
    "QuestionsConfig",
    "FineTuningConfig",
    "ShownConfig",
    "FitConfig",
)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for row in rows:
        cells = (" ".join(cell.replace("|", "\\|").split()) for cell in row)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


class ParsedError(Exception):
    """Carries the options of a command out of its `main`, which would go on to work."""

    def __init__(self, options: Any, default: Any) -> None:
        super().__init__()
        self.options = options
        self.default = default


def options_of(command: str, *arguments: str) -> tuple[Any, Any]:
    """The class of a command's options, and its default where a recipe gives one."""

    def stop(options: Any, _arguments: Any, _command: str, default: Any = None) -> None:
        raise ParsedError(options, default)

    module = importlib.import_module(f"retro.cli.{command}")
    real = module.parse
    module.parse = stop
    try:
        module.main(list(arguments))
    except ParsedError as found:
        return found.options, found.default
    finally:
        module.parse = real
    raise AssertionError(f"retro {command} reads no options")


def command_part(name: str, options: Any, default: Any = None) -> str:
    """A command with its options in the groups of `--help`."""
    given = {} if default is None else {"default": default}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parser = tyro.extras.get_parser(options, prog=name, config=(tyro.conf.AvoidSubcommands,), **given)
    parts = [f"### {name}", inspect.cleandoc(options.__doc__ or "")]
    for group in parser._action_groups:
        rows = [_option_row(action) for action in group._group_actions if action.dest != "help"]
        if rows:
            title = f"{group.title}: {group.description}" if group.description else str(group.title)
            parts.append(table((" ".join(title.split()), "", ""), rows))
    return "\n\n".join(parts)


def _option_row(action: Any) -> tuple[str, str, str]:
    name = ", ".join(action.option_strings) or str(action.dest)
    return f"`{name}`", f"`{action.metavar}`" if action.metavar else "", str(action.help or "")


def command_parts() -> Iterator[str]:
    """Every command, in the order of `retro --help`."""
    for name, summary in COMMANDS.items():
        if name == "db":
            yield f"### retro db\n\n{summary[0].upper()}{summary[1:]}."
            for action, (options, _) in db.ACTIONS.items():
                yield command_part(f"retro db {action}", options)
            continue
        yield command_part(f"retro {name}", *options_of(name))
        if name == "evaluate":
            yield command_part("retro evaluate --task questions", *options_of(name, "--task", "questions"))
        if name == "fit":
            yield command_part("retro fit --base", *options_of(name, "--base", "BASE"))
            yield command_part("retro fit --from", *options_of(name, "--from", "MODEL"))
            yield command_part("retro fit --task qa", *options_of(name, "--task", "qa"))
            yield command_part("retro fit --check", *options_of(name, "--check", "MODEL"))


def fields_of(name: str) -> list[tuple[str, str, str, str]]:
    """Name, type, default and docstring of every field of a config class, as written in the source."""
    tree = ast.parse(inspect.getsource(getattr(config, name))).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            default = ast.unparse(statement.value) if statement.value else "–"
            words = (ast.unparse(statement.target), ast.unparse(statement.annotation), default)
            rows.append((*(f"`{word}`" for word in words), text))
    return rows  # type: ignore[return-value]


def recipe_row(name: str) -> tuple[str, ...]:
    run = recipes.get(name)
    model, training = run.model, run.training
    layers = ", ".join(map(str, model.cross_attention_layers)) or "none"
    steps = f"{training.num_steps:,} × {training.batch_size} × {training.seq_len}"
    return f"`{name}`", f"{model.num_layers} × {model.d_model}", layers, steps


def catalogue_rows() -> list[tuple[str, ...]]:
    fetched = [
        (f"`{entry.name}`", entry.kind, f"{entry.package} {entry.version}", entry.licence, entry.description)
        for entry in catalogue.ENTRIES.values()
    ]
    local = [(f"`{name}`", "corpus", "–", "PSF-2.0", text) for name, text in catalogue.LOCAL.items()]
    return [*fetched, *local]


def commands_page() -> str:
    """Commands with their options, the catalogue, the recipes and every config field."""
    summary = [(f"[`retro {name}`](#retro-{name})", text) for name, text in COMMANDS.items()]
    parts = [
        "# Commands",
        f"{WRITTEN} The Python names are in [python.md](python.md).",
        table(("command", "what it does"), summary),
        "`RETRO_DEBUG=1` shows the trace of an error, `RETRO_CACHE_DIR` moves the cache.",
        "## Options",
        "Defaults are those of the recipe `tiny`; `--recipe NAME` gives others.",
        *command_parts(),
        "## Catalogue",
        table(("name", "kind", "package", "licence", "what"), catalogue_rows()),
        "## Recipes",
        table(
            ("recipe", "decoder", "cross-attention in", "steps × batch × length"),
            [recipe_row(name) for name in recipes.RECIPES],
        ),
        "## Config",
    ]
    for name in CONFIGS:
        documentation = inspect.getdoc(getattr(config, name)) or ""
        parts += [f"### {name}", documentation, table(("field", "type", "default", ""), fields_of(name))]
    return "\n\n".join(parts) + "\n"


def python_page() -> str:
    """Every name that `retro` exports: signature and docstring, and the methods of classes."""
    parts = [
        "# Python",
        f"{WRITTEN} Commands and config fields are in [commands.md](commands.md).",
        "Every name here can be imported from `retro`; it loads when it is first used.",
    ]
    for name in retro.__all__:
        if name == "recipes":
            parts += ["## recipes", _recipes_text()]
        elif name in CONFIGS:
            documentation = inspect.getdoc(getattr(config, name)) or ""
            parts += [f"## {name}", f"{documentation}\n\nFields: [{name}](commands.md#{name.lower()})."]
        else:
            parts += [f"## {name}", *_described(getattr(retro, name))]
    return "\n\n".join(filter(None, parts)) + "\n"


def _recipes_text() -> str:
    about, get = inspect.getdoc(recipes) or "", recipes.get
    return "\n\n".join([about, _code(f"recipes.get{_signature(_tree(get))}"), inspect.getdoc(get) or ""])


def _tree(thing: Any) -> Any:
    """The source of a class or function as a tree, which is the same under every import hook."""
    return ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(thing)))).body[0]


def _signature(tree: ast.FunctionDef) -> str:
    arguments = ast.unparse(tree.args)
    if arguments == "self" or arguments.startswith("self, "):
        arguments = arguments.removeprefix("self").removeprefix(", ")
    result = f" → {ast.unparse(tree.returns)}" if tree.returns is not None else ""
    return f"({arguments}){result}"


def _described(thing: Any) -> list[str]:
    """Signature, docstring, and for a class its fields, properties and methods."""
    tree = _tree(thing)
    place = f"(from `{inspect.unwrap(thing).__module__}`)"
    if isinstance(tree, ast.FunctionDef):
        return [_code(f"{tree.name}{_signature(tree)}"), _text(tree), place]
    methods = _methods(thing)
    made = _signature(methods["__init__"]).removesuffix(" → None") if "__init__" in methods else ""
    lines = list(_fields(tree))
    for name, method in methods.items():
        if name == "__call__" or not name.startswith("_"):
            lines.append(_method_line(thing, name, method))
    return [_code(tree.name + made), _text(tree), place, "\n".join(lines)]


def _methods(cls: type) -> dict[str, ast.FunctionDef]:
    """The methods of a class and of its bases in this package, by name, its own first."""
    bases = [base for base in cls.__mro__ if base.__module__.startswith("retro.")]
    nodes = [node for base in bases for node in _tree(base).body if isinstance(node, ast.FunctionDef)]
    found: dict[str, ast.FunctionDef] = {}
    for node in nodes:
        found.setdefault(node.name, node)
    return found


def _method_line(cls: type, name: str, method: ast.FunctionDef) -> str:
    marks = {ast.unparse(mark) for mark in method.decorator_list}
    is_value = bool(marks & {"property", "cached_property"})
    if is_value:
        shown = f"{name}: {ast.unparse(method.returns)}" if method.returns is not None else name
    else:
        shown = f"{name}{_signature(method)}"
    words = (_text(method) or inspect.getdoc(getattr(cls, name)) or "").split("\n\n")[0]
    return _item(shown, words)


def _fields(tree: ast.ClassDef) -> Iterator[str]:
    """The fields of a dataclass with the docstrings below them."""
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and not ast.unparse(statement.target).startswith("_"):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = str(following.value.value)
            yield _item(ast.unparse(statement), text)


def _item(code: str, text: str) -> str:
    """A line of a list: code, and below it what it is."""
    return f"- `{code}`" + (f"  \n  {' '.join(text.split())}" if text else "")


def _text(tree: Any) -> str:
    return ast.get_docstring(tree) or ""


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


PAGES = {"commands.md": commands_page, "python.md": python_page}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
