"""A sample as plain JSON, whole, so that what was drawn once can be shown again without the model."""

from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from retro.generation.sequence import Sample
from retro.retrieval.search import Neighbour, Place


def sample_to_json(sample: Sample) -> dict[str, Any]:
    """Everything that a finished sample holds."""
    found = [[_neighbour_to_json(neighbour) for neighbour in row] for row in sample.neighbours]
    plain = {field.name: getattr(sample, field.name) for field in fields(Sample)}
    return {**plain, "neighbours": found}


def sample_from_json(values: dict[str, Any]) -> Sample:
    """The sample that was written."""
    found = [[_neighbour_from_json(neighbour) for neighbour in row] for row in values["neighbours"]]
    return replace(Sample(**{**values, "neighbours": []}), neighbours=found)


def _neighbour_to_json(neighbour: Neighbour) -> dict[str, Any]:
    return {**asdict(neighbour), "tokens": neighbour.tokens.tolist()}


def _neighbour_from_json(values: dict[str, Any]) -> Neighbour:
    place = values["place"]
    tokens = np.array(values["tokens"], dtype=np.int64)
    return Neighbour(**{**values, "tokens": tokens, "place": place and Place(**place)})
