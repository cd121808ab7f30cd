"""What `import retro` offers: every name loads, type checkers see the same, nothing heavy is imported."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import retro

SOURCE = Path(retro.__file__)


def typed_names() -> dict[str, str]:
    """The names of the `if TYPE_CHECKING:` block with the modules that they come from."""
    tree = ast.parse(SOURCE.read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


def test_the_table_and_the_types_agree() -> None:
    assert typed_names() == {**retro._PLACES, "recipes": "retro"}
    assert set(retro.__all__) == typed_names().keys()


@pytest.mark.parametrize("name", sorted(retro.__all__))
def test_every_name_loads_and_says_what_it_is(name: str) -> None:
    found = getattr(retro, name)
    assert found.__doc__
    assert name in dir(retro)


def test_other_names_are_no_attributes() -> None:
    with pytest.raises(AttributeError, match="no attribute 'absent'"):
        _ = retro.absent  # type: ignore[attr-defined]


def test_importing_is_light_and_the_package_is_typed() -> None:
    heavy = "{'torch', 'numpy', 'faiss', 'transformers'} & set(sys.modules)"
    code = f"import sys, retro; sys.exit(len({heavy}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (SOURCE.parent / "py.typed").exists()


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((SOURCE.parent.parent.parent / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "retro.__version__"}
