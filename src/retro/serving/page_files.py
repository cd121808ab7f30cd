"""The page: plain files of this package, each known by its name, and nothing else of the disk."""

from pathlib import Path

FOLDER = Path(__file__).parent / "page"
INDEX = FOLDER / "index.html"
TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".json": "application/json",
}


def page_files() -> dict[str, tuple[Path, str]]:
    """Every file of the page by its name, with its type; a name that is not here is not served."""
    found = {}
    for file in sorted(FOLDER.rglob("*")):
        if file.is_file() and file.suffix in TYPES:
            found[file.relative_to(FOLDER).as_posix()] = (file, TYPES[file.suffix])
    return found
