"""The shell and the style that all pages share.

A page is a single file that needs nothing else: no script, no font, no other machine. Every
colour is a variable at the top of the style, and a page's own rules use these variables.
"""

from collections.abc import Sequence
from html import escape

from retro.retrieval.shared_runs import PALETTE

WORSE = ("#efeaf7", "#ddd3ee", "#c9badf", "#b3a0d3")
BETTER = ("#fdf5c9", "#fbeb94", "#f9e266", "#f6d743")
"""Colours of tokens that cost more or fewer bits with retrieval, from a little to a lot."""

# Named for their use, not their look, so that another scheme changes only the values.
_VARIABLES = {
    "text": "#1d2228",
    "quiet": "#555",
    "faint": "#999",
    "paper": "#fff",
    "raised": "#f4f5f7",
    "line": "#ddd",
    "accent": "#2a6f97",
    "divider": "#b3261e",
    **{f"shared-{level}": colour for level, colour in enumerate(PALETTE)},
    **{f"worse-{level}": colour for level, colour in enumerate(WORSE, start=1)},
    **{f"better-{level}": colour for level, colour in enumerate(BETTER, start=1)},
}


def _rules(prefix: str, name: str, levels: range) -> str:
    """Classes `prefix0`, `prefix1` … for the levels of a colour scale."""
    return "".join(f".{prefix}{level} {{ background: var(--{name}-{level}); }}\n" for level in levels)


STYLE = (
    # The colours are chosen for light paper: a dark browser must not turn them round.
    ":root {\n  color-scheme: light;\n"
    + "".join(f"  --{name}: {value};\n" for name, value in _VARIABLES.items())
    + "}\n"
    + _rules("o", "shared", range(len(PALETTE)))
    + _rules("w", "worse", range(1, len(WORSE) + 1))
    + _rules("b", "better", range(1, len(BETTER) + 1))
    + """\
body { font: 16px/1.55 system-ui, sans-serif; max-width: 1180px; margin: 2em auto; padding: 0 1.2em;
       color: var(--text); background: var(--paper); }
body.wide { max-width: 1500px; font-size: 15px; }
h1 { font-size: 1.6em; margin-bottom: .2em; }
h2 { font-size: 1.2em; margin-top: 2em; }
h3 { font-size: 1em; margin-bottom: .3em; }
.lead { font-size: 1.15em; max-width: 52em; }
.note { color: var(--quiet); font-size: .93em; max-width: 60em; }
.wide .note { max-width: none; }
mark { color: inherit; background: none; border-radius: 2px; }
.legend mark { padding: .1em .5em; margin-right: .2em; font-size: 12px; white-space: nowrap; }
.origin { font: 11px/1.4 system-ui, sans-serif; color: var(--quiet); display: block; margin-bottom: .4em; }
.divider { color: var(--divider); font-weight: bold; }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: var(--raised); }
code { padding: .1em .3em; }
pre { padding: .8em; overflow-x: auto; }
figure { margin: 0; }
figure svg { width: 100%; height: auto; }
figcaption { font-size: .9em; color: var(--quiet); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 1.5em; }
.scroll { overflow-x: auto; }
table.numbers { border-collapse: collapse; }
table.numbers td, table.numbers th { padding: .3em .9em; text-align: right;
                                     border-bottom: 1px solid var(--line); }
table.numbers td:first-child, table.numbers th:first-child { text-align: left; }
table.sample { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.sample td, table.sample th { vertical-align: top; padding: .6em; text-align: left; }
table.sample th { position: sticky; top: 0; background: var(--paper); font-size: 13px;
                  border-bottom: 2px solid var(--faint); }
table.sample td { border-top: 1px solid var(--line); font: 12px/1.55 ui-monospace, monospace;
                  white-space: pre-wrap; overflow-wrap: anywhere; }
table.sample td + td { border-left: 1px solid var(--line); }
table.sample .prompt { color: var(--quiet); }
"""
)


def page(title: str, body: str, style: str = "", wide: bool = False) -> str:
    """A whole page. `body` and `style`, the page's own rules, are inserted unchanged.

    A wide page is for text in columns; others keep lines at a readable length.
    """
    # The title is text and escaped here; `body` is HTML and already escaped by the caller.
    name = escape(title)
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{name}</title><style>
{STYLE}{style}</style></head><body{' class="wide"' if wide else ""}>
<h1>{name}</h1>
{body}
</body></html>
"""


def numbers_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts, the first column aligned left and the others right."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def figure(svg: str, caption: str) -> str:
    """A plot, inserted unchanged, above its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
