"""Ways to answer questions: which passages, how many, and how they are read; and the score of each."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retro.comparators.passages import NO_FRAME, PASSAGE_LEN, Frame, Fused, Prepended
from retro.config import QuestionsConfig
from retro.config.run import SEARCHED
from retro.errors import ConfigError
from retro.model.protocol import LanguageModel
from retro.questions.scoring import mean, percent
from retro.scoring.intervals import Interval

MARKS = ("exact_match", "f1", "recalled", "unfounded", "silent")
"""What is known of every answer."""
HEADINGS = ["passages", "read", "n", "exact match", "F1", "recall", "in no passage", "empty", "gain (EM)"]


@dataclass(frozen=True)
class Way:
    """Which passages of a question are read, how, and how many."""

    passages: str
    reading: str = ""
    """How they are read; closed book, nothing is."""
    num_passages: int = 0
    """Of those that are searched for; 0 for a question's own, of which all are read."""

    @property
    def name(self) -> str:
        """The name of its folder."""
        number = str(self.num_passages) if self.num_passages else ""
        return "-".join(filter(None, (self.passages, number, self.reading)))


CLOSED = Way("none")


def ways_of(config: QuestionsConfig) -> list[Way]:
    """The ways that a config asks for, closed book first."""
    ways = [CLOSED] if "none" in config.passages else []
    for passages in config.passages:
        numbers = config.num_passages if passages in SEARCHED else (0,)
        if passages != "none":
            ways += [Way(passages, reading, n) for n in numbers for reading in config.readings]
    return list(dict.fromkeys(ways))


def model_for(
    reading: str, model: LanguageModel, passage_len: int = PASSAGE_LEN, frame: Frame = NO_FRAME
) -> LanguageModel:
    """The model that reads passages in this way."""
    if reading == "prompt":
        return Prepended(model, passage_len, frame)
    if reading == "fused":
        return Fused(model, passage_len, frame)
    if reading and not model.facts.retrieves:
        raise ConfigError(
            "the run is a baseline, which reads no neighbours; expected passages in its prompt: "
            "--readings prompt"
        )
    return model


@dataclass(frozen=True)
class WayScore:
    """How well questions were answered in one way, with intervals over questions."""

    way: Way
    num_questions: int
    exact_match: Interval
    f1: Interval
    recall: Interval
    """Part of the questions for which some passage holds a right answer."""
    unfounded: Interval
    """Part of the answers that no passage holds, the empty ones among them."""
    silent: Interval
    """Part of the answers that are empty."""
    gain: Interval | None
    """In exact match over closed book, paired by question; None if that was not asked for."""

    def row(self) -> list[str]:
        """A row of the table below `HEADINGS`, in percent."""
        number = str(self.way.num_passages) if self.way.num_passages else ""
        numbers = (self.exact_match, self.f1, self.recall, self.unfounded, self.silent)
        gain = percent(self.gain) if self.gain is not None else ""
        return [self.way.passages, self.way.reading, number, *map(percent, numbers), gain]


def score_way(way: Way, marks: Mapping[str, np.ndarray], closed: Mapping[str, np.ndarray] | None) -> WayScore:
    """The score of the marks of one way; `closed` are those of the same questions closed book."""
    gain = None
    if closed is not None and way != CLOSED:
        # Paired: first the difference for each question, then its interval.
        gain = mean(marks["exact_match"] - closed["exact_match"])
    exact_match, f1, recall, unfounded, silent = (mean(marks[name]) for name in MARKS)
    return WayScore(way, len(marks["f1"]), exact_match, f1, recall, unfounded, silent, gain)
