"""The table as a page, in the shell of all pages of the project."""

import os
import platform
from collections.abc import Mapping, Sequence
from html import escape

import torch

from retro.machine import has_bfloat16
from retro.pages.shell import Made, facts_list, numbers_table, page
from speed.rows import Row, cells, headings

LEAD = (
    "What a user waits for: how fast it is here, beside the best that a user could take in its place and "
    "beside what this machine can do at most."
)
NOTE = (
    "All candidates of a line took turns; a number is the median of the rounds, with the lowest and the "
    "highest. Above 1 ours is faster, or needs less. A part of the limit is of what the machine does when it "
    "does nothing else: one large matrix product in the same precision, or reading the same bytes once."
)


def facts() -> list[tuple[str, str]]:
    """The machine."""
    has = "with" if has_bfloat16(torch.device("cpu")) else "without"
    return [
        ("machine", f"{os.cpu_count()} cores, {platform.machine()}, {has} bfloat16 products"),
        ("software", f"Python {platform.python_version()}, torch {torch.__version__}"),
        ("threads", str(torch.get_num_threads())),
    ]


def table_page(rows: Mapping[str, Sequence[Row]], missing: Mapping[str, str], made: Made) -> str:
    """`missing` says of each part that has no rows why."""
    body = [f'<p class="lead">{escape(LEAD)}</p>', facts_list(facts())]
    for part, some in rows.items():
        body.append(f"<h2>{escape(part)}</h2>")
        body.append(numbers_table(headings(), [cells(row) for row in some], "there is none"))
    body += [f"<h2>{escape(part)}</h2><p>{escape(reason)}</p>" for part, reason in missing.items()]
    body.append(f'<p class="note">{escape(NOTE)}</p>')
    return page("Speed, beside the machine's limit", "\n".join(body), wide=True, made=made)
