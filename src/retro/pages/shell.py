"""The shell and the style that all pages share.

A page is a single file that needs nothing else: no script, no font, no other machine. It follows the reader's
choice of light or dark paper and fits a telephone. Every colour is a variable at the top of the style, and a
page's own rules use these variables.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape

from retro.pages.colours import BETTER, VARIABLES, WORSE
from retro.retrieval.shared_runs import LONGEST, SHORTEST

SENTENCE = 40
"""A cell of a table with more characters is a sentence, which is broken into lines."""
LONG_COMMAND = 160
"""A longer command, which has a prompt of several lines in it, would take the room of the page itself."""


def _rules(prefix: str, name: str, levels: range) -> str:
    """Classes `prefix1`, `prefix2` … for the levels of a colour scale."""
    # The ink is set too, since a prompt's quiet ink would be hard to read on a colour.
    return "".join(
        f".{prefix}{level} {{ background: var(--{name}-{level}); color: var(--text); }}\n" for level in levels
    )


STYLE = (
    ":root {\n  color-scheme: light dark;\n"
    + "".join(f"  --{name}: {shade.css};\n" for name, shade in VARIABLES.items())
    + "}\n"
    # Shorter runs than these have a class, as they were compared, but no colour.
    + "".join(f".o{level} {{ background: none; }}\n" for level in range(SHORTEST))
    + _rules("o", "shared", range(SHORTEST, LONGEST + 1))
    + _rules("w", "worse", range(1, len(WORSE) + 1))
    + _rules("b", "better", range(1, len(BETTER) + 1))
    + """\
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 1180px; margin: 1.6em auto; padding: 0 1.2em;
       color: var(--text); background: var(--paper); overflow-wrap: break-word; }
body.wide { max-width: 1500px; font-size: 15px; }
h1 { font-size: 1.6em; line-height: 1.25; margin: 0 0 .3em; }
h2 { font-size: 1.2em; margin-top: 2em; }
h3 { font-size: 1em; margin-bottom: .3em; }
a { color: inherit; text-underline-offset: .15em; text-decoration-color: var(--quiet); }
a:focus-visible, [tabindex]:focus-visible, summary:focus-visible { outline: 2px solid; outline-offset: 2px; }
:target { outline: 2px solid var(--quiet); outline-offset: .3em; border-radius: 2px; scroll-margin: 1em; }
.lead { font-size: 1.15em; max-width: 52em; }
.note { color: var(--quiet); font-size: .93em; max-width: 60em; }
.wide .note { max-width: none; }
.made { margin: 0 0 1.4em; font-size: 13px; color: var(--quiet); }
.made div, .facts div { display: grid; grid-template-columns: 7em 1fr; gap: 0 1em; padding: .1em 0; }
.made code { white-space: pre-wrap; }
.made code span { white-space: nowrap; }
.made summary { cursor: pointer; }
.made details[open] summary code { display: none; }
.made dd, .facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.facts { font-size: .93em; }
.facts div { border-bottom: 1px solid var(--line); padding: .35em 0; }
.facts dt { color: var(--quiet); }
mark { color: inherit; background: none; border-radius: 2px; }
a:has(> mark) { text-decoration: none; }
a:has(> mark):hover mark { text-decoration: underline; }
.legend { display: flex; flex-wrap: wrap; gap: .25em .3em; align-items: baseline; font-size: 13px;
          color: var(--quiet); }
.legend mark { padding: .1em .5em; font-size: 12px; white-space: nowrap; border: 1px solid var(--line); }
.origin { font: 11.5px/1.45 system-ui, sans-serif; color: var(--quiet); display: block; margin-bottom: .4em;
          white-space: normal; }
.why { font: italic 12px/1.45 system-ui, sans-serif; color: var(--quiet); white-space: normal; }
.divider { color: var(--quiet); font-weight: bold; }
code, pre { font: 13px/1.5 ui-monospace, monospace; background: var(--raised); }
code { padding: .1em .3em; overflow-wrap: anywhere; }
pre { padding: .8em; overflow-x: auto; }
figure { margin: 0; max-width: 560px; }
figure svg { width: 100%; height: auto; display: block; }
figcaption { font-size: .9em; color: var(--quiet); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); gap: 1.5em; }
.scroll { overflow-x: auto; }
table.numbers { border-collapse: collapse; font-variant-numeric: tabular-nums; }
table.numbers td, table.numbers th { padding: .3em .9em; text-align: right; white-space: nowrap;
                                     border-bottom: 1px solid var(--line); }
table.numbers td:first-child, table.numbers th:first-child { text-align: left; padding-left: 0; }
table.numbers td.words, table.numbers th.words { text-align: left; white-space: normal; min-width: 11em; }
table.numbers td { vertical-align: top; }
td.empty { color: var(--quiet); cursor: help; }
table.sample { border-collapse: collapse; width: 100%; table-layout: fixed; }
table.sample td, table.sample th { vertical-align: top; padding: .6em; text-align: left; }
table.sample th { position: sticky; top: 0; background: var(--paper); font-size: 13px;
                  border-bottom: 2px solid var(--line); }
table.sample td { border-top: 1px solid var(--line); font: 12px/1.55 ui-monospace, monospace;
                  white-space: pre-wrap; overflow-wrap: anywhere; }
table.sample td + td { border-left: 1px solid var(--line); }
table.sample .prompt { color: var(--quiet); }
ul.sources { padding-left: 1.2em; font-size: .93em; columns: 28em; column-gap: 3em; }
ul.sources li { break-inside: avoid; margin-bottom: .3em; overflow-wrap: anywhere; }
@media (max-width: 760px) {
  body, body.wide { padding: 0 .8em; margin: 1em auto; font-size: 15px; }
  .lead { font-size: 1.05em; }
  .made div, .facts div { grid-template-columns: 5.2em 1fr; }
  /* A shadow where there is more: covers of paper move with the table, and hide it at either end. */
  .scroll {
    background: linear-gradient(to right, var(--paper) 40%, transparent) left -1px top / 2.4em 100% local,
                linear-gradient(to left, var(--paper) 40%, transparent) right -1px top / 2.4em 100% local,
                linear-gradient(to right, var(--line), transparent) left / 1em 100%,
                linear-gradient(to left, var(--line), transparent) right / 1em 100%;
    background-repeat: no-repeat;
  }
  table.numbers { font-size: 13px; }
  table.numbers td, table.numbers th { padding: .3em .5em; }
  table.numbers th { white-space: normal; vertical-align: bottom; }
  table.numbers td:first-child, table.numbers th:first-child { position: sticky; left: 0;
                                                               background: var(--paper); }
  table.sample thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table.sample, table.sample tbody, table.sample tr, table.sample td { display: block; }
  table.sample tr { border-top: 3px solid var(--line); padding: .4em 0; }
  table.sample td { border: none; padding: .4em 0; }
  table.sample td + td { border-left: none; border-top: 1px dashed var(--line); }
  table.sample td::before { content: attr(data-column); display: block; margin-bottom: .2em;
                            font: 600 12px/1.4 system-ui, sans-serif; white-space: normal; }
}
"""
)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class Made:
    """Where a page comes from: what every page says below its title."""

    command: str
    """What to run to make it again."""
    corpus: str
    """The text behind it, with its documents and tokens."""
    date: str = field(default_factory=_now)

    def html(self) -> str:
        rows = {
            "made": escape(self.date),
            "command": _folded(self.command),
            "corpus": escape(self.corpus),
        }
        return _described("made", rows)

    def record(self) -> dict[str, str]:
        return {"date": self.date, "command": self.command, "corpus": self.corpus}


def _folded(command: str) -> str:
    """A command as it was given, line for line; one with a long prompt in it is folded to its beginning."""
    whole = f"<code>{_unbroken(escape(command))}</code>"
    if len(command) <= LONG_COMMAND:
        return whole
    beginning = " ".join(command[:LONG_COMMAND].split())
    return f"<details><summary><code>{escape(beginning)} …</code> whole</summary>{whole}</details>"


def _unbroken(command: str) -> str:
    """A command whose options are not broken after their first hyphen at the end of a line."""
    return re.sub(r"(?<= )--[\w.-]+", r"<span>\g<0></span>", command)


def page(title: str, body: str, style: str = "", wide: bool = False, made: Made | None = None) -> str:
    """A whole page. `body` and `style`, the page's own rules, are inserted unchanged.

    A wide page is for text in columns; others keep lines at a readable length.
    """
    # The title is text and escaped here; `body` is HTML and already escaped by the caller.
    name = escape(title)
    whole = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title><style>
{STYLE}{style}</style></head><body{' class="wide"' if wide else ""}>
<header><h1>{name}</h1>
{made.html() if made else ""}</header>
<main>
{body}
</main>
</body></html>
"""
    # A path in a command need not be UTF-8, but a page must be: what has no bytes is shown as an escape.
    return whole.encode(errors="backslashreplace").decode()


def numbers_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], empty: str = "nothing was measured here"
) -> str:
    """A table of texts, the first column aligned left and the others right, in a box that scrolls.

    Columns with sentences are aligned left as well. `empty` says why a cell is empty.
    """
    wordy = {column for row in rows for column, text in enumerate(row) if len(text) > SENTENCE}
    head = "".join(
        f'<th scope="col"{_classes(column in wordy)}>{escape(heading)}</th>'
        for column, heading in enumerate(headings)
    )
    lines = [[_cell(text, column in wordy, empty) for column, text in enumerate(row)] for row in rows]
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in lines)
    table = f'<table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    # A box that scrolls must be reachable without a mouse, and then has to have a name.
    name = escape(f"table by {headings[0]}")
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{name}">{table}</div>'


def _cell(text: str, is_words: bool, empty: str) -> str:
    if not text:
        return f'<td{_classes(is_words, "empty")} title="{escape(empty)}">–</td>'
    return f"<td{_classes(is_words)}>{escape(text)}</td>"


def _classes(is_words: bool, *others: str) -> str:
    """The attribute, or nothing."""
    classes = [*others, *(["words"] if is_words else [])]
    return f' class="{" ".join(classes)}"' if classes else ""


def facts_list(facts: Sequence[tuple[str, str]]) -> str:
    """Names and what is to be said of them, one below the other."""
    return _described("facts", {name: escape(value) for name, value in facts})


def _described(name: str, rows: dict[str, str]) -> str:
    """A list of names and values; the values are HTML."""
    parts = "".join(f"<div><dt>{escape(term)}</dt><dd>{value}</dd></div>" for term, value in rows.items())
    return f'<dl class="{name}">{parts}</dl>'


def why(reason: str) -> str:
    """What stands in a cell that would be empty: the reason."""
    return f'<span class="why">{escape(reason)}</span>'


def figure(svg: str, caption: str) -> str:
    """A plot, inserted unchanged, above its caption."""
    return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
