"""Every command that a message tells to run exists, with the options that are named."""

import re
from pathlib import Path

import pytest

from retro.cli.main import COMMANDS

SOURCE = Path(__file__).parent.parent.parent / "src" / "retro"
NAMED = re.compile(r"(?:run: |command = f?\"|, f?\")retro ([a-z]+)")


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_named_commands_exist(file: Path) -> None:
    for command in NAMED.findall(file.read_text()):
        assert command in COMMANDS, command
