"""Write docs/reference.md from the code: commands, recipes, every config field.

A test checks that it is current.
"""

import ast
import inspect
from pathlib import Path

from retro import catalogue, config, recipes
from retro.cli.main import COMMANDS

PAGE = Path(__file__).parent / "reference.md"
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
    "FineTuningConfig",
)


def fields_of(name: str) -> list[tuple[str, str, str, str]]:
    """Name, type, default and docstring of every field of a config class, as written in the source."""
    tree = ast.parse(inspect.getsource(getattr(config, name))).body[0]
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign):
            text = ""
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = " ".join(str(following.value.value).split())
            default = ast.unparse(statement.value) if statement.value else "–"
            rows.append((ast.unparse(statement.target), ast.unparse(statement.annotation), default, text))
    return rows


def table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(
        lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    )


def recipe_row(name: str) -> tuple[str, ...]:
    run = recipes.get(name)
    model, training = run.model, run.training
    layers = ", ".join(map(str, model.cross_attention_layers)) or "none"
    return (
        f"`{name}`",
        f"{model.num_layers} × {model.d_model}",
        layers,
        f"{training.num_steps:,} × {training.batch_size} × {training.seq_len}",
    )


def page() -> str:
    """The whole page."""
    parts = [
        "# Reference",
        "Written by `make docs` from the code. Do not edit.",
        "## Commands",
        table(("command", "what it does"), [(f"`retro {name}`", text) for name, text in COMMANDS.items()]),
        "`retro COMMAND --help` lists the options. `RETRO_DEBUG=1` shows the trace of an error, "
        "`RETRO_CACHE_DIR` moves the cache.",
        "## Catalogue",
        table(
            ("name", "kind", "package", "licence", "what"),
            [
                (f"`{e.name}`", e.kind, f"{e.package} {e.version}", e.licence, e.description)
                for e in catalogue.ENTRIES.values()
            ]
            + [(f"`{name}`", "corpus", "–", "PSF-2.0", text) for name, text in catalogue.LOCAL.items()],
        ),
        "## Recipes",
        table(
            ("recipe", "decoder", "cross-attention in", "steps × batch × length"),
            [recipe_row(name) for name in recipes.RECIPES],
        ),
        "## Config",
    ]
    for name in CONFIGS:
        documentation = inspect.getdoc(getattr(config, name)) or ""
        parts += [
            f"### {name}",
            documentation,
            table(
                ("field", "type", "default", ""),
                [(f"`{a}`", f"`{b}`", f"`{c}`", d) for a, b, c, d in fields_of(name)],
            ),
        ]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
