"""Numbers in sentences agree with what they count, wherever a command prints them."""

import re
from pathlib import Path

import retro
from retro.wording import counted

THINGS = "documents|neighbours|chunks|steps|questions|answers|passages|files|articles|copies|items|keys"


def test_one_is_not_many() -> None:
    assert counted(1, "document") == "1 document"
    assert counted(0, "document") == "0 documents"
    assert counted(1200, "test document") == "1,200 test documents"
    assert counted(1, "copy", "copies") == "1 copy"
    assert counted(2, "copy", "copies") == "2 copies"


def test_commands_count_with_it() -> None:
    """A number that is written before a plural of its own is wrong wherever it is one."""
    commands = sorted((Path(retro.__file__).parent / "cli").glob("*.py"))
    assert commands
    found = [
        f"{path.name}: {match.group()}"
        for path in commands
        for match in re.finditer(rf"\{{[^{{}}]+\}} ({THINGS})\b", path.read_text())
    ]
    assert not found
