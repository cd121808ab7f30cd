"""One self-contained HTML page: the checklist of claims, then every experiment with its numbers and
their origin."""

import json
from collections.abc import Sequence
from html import escape

from retro.pages.shell import Made, figure, numbers_table, page, why
from retro.reproduce.claims import CLAIMS, TESTED_BY, Claim, Verdict
from retro.reproduce.result import Result, Table, text_of

MARKS = {Verdict.REPRODUCED: "✓", Verdict.NOT_REPRODUCED: "✗", Verdict.TOO_SMALL: "?"}
CLASSES = {Verdict.REPRODUCED: "good", Verdict.NOT_REPRODUCED: "bad", Verdict.TOO_SMALL: "unsure"}
STYLE = """\
table.claims { border-collapse: collapse; }
table.claims td, table.claims th { padding: .45em .8em; border-bottom: 1px solid var(--line);
                                   vertical-align: top; text-align: left; }
table.claims td:first-child, table.claims th:first-child { padding-left: 0; }
td.verdict { white-space: nowrap; font-weight: 600; }
td.good { color: var(--good); }
td.bad { color: var(--bad); }
td.unsure, td.open, td.found { color: var(--quiet); }
span.seeds { white-space: nowrap; }
section { border-top: 1px solid var(--line); margin-top: 2.4em; }
details { margin-top: 1em; font-size: .93em; }
summary { cursor: pointer; }
@media (max-width: 760px) {
  table.claims thead { position: absolute; clip-path: inset(50%); width: 1px; height: 1px; overflow: hidden; }
  table.claims, table.claims tbody, table.claims tr, table.claims td { display: block; }
  table.claims tr { border-bottom: 1px solid var(--line); padding: .5em 0; }
  table.claims td { border: none; padding: .1em 0; }
}
"""


def checklist(results: Sequence[Result]) -> list[tuple[str, Claim | None, str]]:
    """Every claim in order: its statement, the finding if it was tested, and the experiment that tests it."""
    found = {claim.key: (claim, result.name) for result in results for claim in result.claims}
    return [(statement, *found.get(key, (None, TESTED_BY[key]))) for key, statement in CLAIMS.items()]


def tally(results: Sequence[Result]) -> str:
    """How many claims there are, how many were tested, and with which verdicts."""
    # Claims that no experiment has tested have no verdict.
    verdicts = [claim.verdict for _, claim, _ in checklist(results) if claim is not None]
    told = ", ".join(f"{verdicts.count(verdict)} {verdict.value}" for verdict in Verdict)
    left = len(CLAIMS) - len(verdicts)
    open_ones = f"; {left} {'was' if left == 1 else 'were'} not tested" if left else ""
    return f"Of {len(CLAIMS)} claims of the paper {len(verdicts)} were tested here: {told}{open_ones}."


def render(results: Sequence[Result], scale: str, made: Made | None = None) -> str:
    decided = any(result.claims for result in results)
    claims = _claims(results) if decided else '<p class="note">What was run here decides no claim.</p>'
    body = f"{claims}{''.join(map(_section, results))}"
    return page(f"RETRO reproduced, scale {scale}", body, STYLE, made=made)


def _claims(results: Sequence[Result]) -> str:
    """The tally, how verdicts are made, and the checklist."""
    head = "".join(f'<th scope="col">{name}</th>' for name in ("verdict", "claim", "found"))
    ran = {result.name for result in results}
    rows = "".join(
        _claim_row(statement, claim, experiment, experiment in ran)
        for statement, claim, experiment in checklist(results)
    )
    return f"""<p class="lead">{tally(results)}</p>
<p class="note">A claim is reproduced if the whole 95 % interval (bootstrap over documents) speaks for it, not
reproduced if the whole interval speaks against it, and too small to tell otherwise, as where trainings with
several seeds disagree. The models are small: the findings hold for this data and these sizes.</p>
<table class="claims"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
"""


def _claim_row(statement: str, claim: Claim | None, experiment: str, ran: bool) -> str:
    if claim is None:
        mark = f'<td class="verdict open">{"not decided" if ran else "not run"}</td>'
        told = "was run, but this data or scale cannot decide it" if ran else "would decide it"
        reason = why(f"{experiment} {told}.")
        return f'<tr>{mark}<td class="open">{escape(statement)}</td><td>{reason}</td></tr>'
    verdict = f"{MARKS[claim.verdict]} {claim.verdict.value}"
    spread = f' <span class="seeds">{escape(claim.spread)}</span>' if claim.spread else ""
    cells = [
        f'<td class="verdict {CLASSES[claim.verdict]}">{verdict}</td>',
        f"<td>{escape(statement)}</td>",
        f'<td class="found"><a href="#{experiment}">{escape(claim.found)}</a>{spread}</td>',
    ]
    return f"<tr>{''.join(cells)}</tr>"


def _table(table: Table) -> str:
    rows = [[text_of(cell) for cell in row] for row in table.rows]
    empty = "nothing to measure in this row, or it is what the others are compared with"
    return numbers_table(table.headings, rows, empty)


def _section(result: Result) -> str:
    tables = "".join(f"<h3>{escape(t.title)}</h3>{_table(t)}" for t in result.tables)
    figures = "".join(figure(f.svg, f.caption) for f in result.figures)
    # The command has a place of its own, above the rest.
    source = {key: value for key, value in result.provenance.items() if key != "command"}
    return f"""<section id="{result.name}"><h2>{escape(result.title)}</h2>
<p class="note">In the paper: {escape(result.paper)}</p>{tables}<div class="plots">{figures}</div>
<details><summary>Where these numbers come from</summary><pre>{escape(result.provenance["command"])}</pre>
<pre>{escape(json.dumps(source, indent=1, ensure_ascii=False))}</pre></details></section>"""
