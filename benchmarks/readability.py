"""How readable the package is, in a few numbers to compare with other code bases and with yesterday.

    python benchmarks/readability.py [FOLDER]

Modules (without `__init__.py`), their sizes, functions and their lengths, the width that 90 % of the lines
keep within, comments in 1,000 lines, and assignments of several attributes at once.
"""

import ast
import io
import statistics
import sys
import tokenize
from pathlib import Path

SMALL = 80
"""Lines below which a module may be no subject of its own."""


def comment_lines(source: str) -> int:
    """Lines that are a comment and nothing else, and comments behind code; docstrings are not counted."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    # Remarks to tools say nothing to a reader.
    return sum(not comment.startswith(("# type:", "# noqa", "# fmt:")) for comment in comments)


def dense_assignments(tree: ast.AST) -> int:
    """Assignments of a tuple whose targets are attributes, such as `self.a, self.b = a, b`."""
    tuples = [
        target
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Tuple)
    ]
    return sum(any(isinstance(part, ast.Attribute) for part in target.elts) for target in tuples)


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "src" / "retro"
    files = [file for file in sorted(folder.rglob("*.py")) if file.name != "__init__.py"]
    sources = {file: file.read_text() for file in files}
    sizes = {file: len(source.splitlines()) for file, source in sources.items()}
    widths, functions, comments, dense = [], [], 0, 0
    for source in sources.values():
        tree = ast.parse(source)
        widths += [len(line) for line in source.splitlines() if line.strip()]
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        functions += [(node.end_lineno or node.lineno) - node.lineno + 1 for node in found]
        comments += comment_lines(source)
        dense += dense_assignments(tree)
    largest = max(sizes, key=lambda file: sizes[file])
    lines = sum(sizes.values())
    print(
        f"{len(files)} modules, {lines:,} lines; {sum(size < SMALL for size in sizes.values())} below {SMALL}"
    )
    print(f"a file has {statistics.median(sizes.values()):.0f} lines in the median; the largest is")
    print(f"  {largest.relative_to(folder)} with {sizes[largest]}")
    print(f"{len(functions):,} functions of {statistics.median(functions):.0f} lines in the median")
    print(f"90 % of the lines are within {sorted(widths)[int(0.9 * len(widths))]} columns")
    print(f"{1000 * comments / lines:.0f} comments in 1,000 lines; {dense} assignments of several attributes")


if __name__ == "__main__":
    main()
