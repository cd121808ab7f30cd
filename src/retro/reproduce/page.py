"""One self-contained HTML page: the checklist of claims, then every experiment with its numbers and
their origin."""

import json
from collections.abc import Sequence
from html import escape

from retro.pages.shell import figure, numbers_table, page
from retro.reproduce.claims import CLAIMS, Claim, Verdict
from retro.reproduce.result import Result, Table, text_of

MARKS = {Verdict.REPRODUCED: "✓", Verdict.NOT_REPRODUCED: "✗", Verdict.TOO_SMALL: "?"}
COLOURS = {Verdict.REPRODUCED: "#2f7d4f", Verdict.NOT_REPRODUCED: "#b23b3b", Verdict.TOO_SMALL: "#8a6d1b"}
STYLE = """\
table.claims { border-collapse: collapse; }
table.claims td { padding: .45em .8em; border-bottom: 1px solid var(--line); vertical-align: top; }
table.claims td.verdict { white-space: nowrap; font-weight: 600; }
td.found { color: var(--quiet); }
td.open { color: var(--faint); }
.found a { color: inherit; text-decoration: none; border-bottom: 1px dotted var(--faint); }
section { border-top: 1px solid var(--line); margin-top: 2.4em; }
section figure { max-width: 620px; }
details { margin-top: 1em; font-size: .93em; }
summary { cursor: pointer; color: var(--accent); }
"""


def checklist(results: Sequence[Result]) -> list[tuple[str, Claim | None, str]]:
    """Every claim in order: its statement, the finding if it was tested, and the experiment's name."""
    found = {claim.key: (claim, result.name) for result in results for claim in result.claims}
    return [(statement, *found.get(key, (None, ""))) for key, statement in CLAIMS.items()]


def render(results: Sequence[Result], scale: str) -> str:
    # Claims that no experiment has tested have no verdict and are not counted.
    counts = [claim.verdict for _, claim, _ in checklist(results) if claim is not None]
    told = ", ".join(f"{counts.count(verdict)} {verdict.value}" for verdict in Verdict)
    body = f"""<p class="lead">Of {len(CLAIMS)} claims of the paper {len(counts)} were tested here: {told}.
</p>
<p class="note">A claim is reproduced if the whole 95 % interval (bootstrap over documents) speaks for it, not
reproduced if the whole interval speaks against it, and too small to tell otherwise. The models are small:
the findings hold for this data and these sizes.</p>
<table class="claims">{"".join(_claim_row(*row) for row in checklist(results))}</table>
{"".join(map(_section, results))}"""
    return page(f"RETRO reproduced, scale {scale}", body, STYLE)


def _claim_row(statement: str, claim: Claim | None, experiment: str) -> str:
    if claim is None:
        not_run = '<td class="verdict open">not run</td>'
        return f'<tr>{not_run}<td class="open">{escape(statement)}</td><td></td></tr>'
    verdict = f"{MARKS[claim.verdict]} {claim.verdict.value}"
    cells = [
        f'<td class="verdict" style="color:{COLOURS[claim.verdict]}">{verdict}</td>',
        f"<td>{escape(statement)}</td>",
        f'<td class="found"><a href="#{experiment}">{escape(claim.found)}</a></td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _table(table: Table) -> str:
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    return numbers_table(table.headings, rows)


def _section(result: Result) -> str:
    tables = "".join(
        f'<h3>{escape(t.title)}</h3><div class="scroll">{_table(t)}</div>' for t in result.tables
    )
    figures = "".join(figure(f.svg, f.caption) for f in result.figures)
    # The command has a place of its own, above the rest.
    source = {key: value for key, value in result.provenance.items() if key != "command"}
    return f"""<section id="{result.name}"><h2>{escape(result.title)}</h2>
<p class="note">In the paper: {escape(result.paper)}</p>{tables}<div class="plots">{figures}</div>
<details><summary>Where these numbers come from</summary><pre>{escape(result.provenance["command"])}</pre>
<pre>{escape(json.dumps(source, indent=1, ensure_ascii=False))}</pre></details></section>"""
