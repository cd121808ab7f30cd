"""Question answering by what only the passages can tell."""

from retro.questions.experiment import CLOSED, HEADINGS, SHUFFLED
from retro.questions.probe import run_probe
from retro.reproduce.claims import Claim, above, together
from retro.reproduce.experiment import Findings, percent
from retro.reproduce.result import Cell, Table
from retro.reproduce.scales import Scale
from retro.study import Study


def probe(study: Study, scale: Scale) -> Findings:
    """A small RETRO, trained to answer from passages whose facts are paired anew in every question."""
    path = study.work.run_path("questions-probe")
    with (
        study.clock.part("train questions-probe", path),
        study.narrator.progress("Training on the probe") as told,
    ):
        found = run_probe(path, progress=told)
    rows: list[list[Cell]] = [list(row) for row in found.rows()]
    gains = found.gains[CLOSED], found.gains[SHUFFLED]
    sentence = f"on questions that only passages can answer, exact match is {percent(gains[0])} above closed book and {percent(gains[1])} above shuffled passages"
    claim = Claim("questions", together(*map(above, gains)), sentence)
    return Findings(
        [Table(f"{found.num_questions} questions, in %", ["answered", *HEADINGS[1:]], rows)], [], [claim]
    )
