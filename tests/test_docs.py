"""Documentation that can be checked is checked."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("name", ["commands.md", "python.md"])
def test_the_reference_is_current(name: str) -> None:
    module = runpy.run_path(str(ROOT / "docs" / "make_reference.py"))
    page = module["PAGES"][name]()
    assert (ROOT / "docs" / "reference" / name).read_text() == page, "run: make docs"


@pytest.mark.slow
def test_the_table_of_bases_is_current() -> None:
    # Many of its rows are checked one by one in tests/fitting/test_passport.py.
    module = runpy.run_path(str(ROOT / "docs" / "make_bases.py"))
    assert module["PAGE"].read_text() == module["written"](), "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / link).exists(), link
    for name in re.findall(r"`((?:src|docs|tests|benchmarks)/[\w/.-]+)`", text):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`((?:model|corpus|retrieval|training|sampling|evaluation|cli)/\w+\.py)`", text):
        assert (ROOT / "src" / "retro" / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_commands_exist(page: Path) -> None:
    from retro.cli.main import COMMANDS

    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text(), flags=re.DOTALL):
        for line in block.splitlines():
            words = line.split()
            if words[:1] == ["retro"]:
                assert words[1] in {*COMMANDS, "--help"}, line
            if words[:1] == ["make"]:
                assert words[1] in targets, line
