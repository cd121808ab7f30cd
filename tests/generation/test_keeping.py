"""A sample that is written as JSON and read again is the same sample."""

import json

import numpy as np

from retro.generation.keeping import sample_from_json, sample_to_json
from retro.generation.sequence import Sample
from retro.retrieval.search import Neighbour, Place


def test_a_sample_is_read_back_whole() -> None:
    neighbour = Neighbour(3, 0.25, np.array([1, 2, 0]), "té", "id", "T", "s", Place(1, 2, 4, 8), "hash")
    given = Neighbour(0, 0.0, np.array([5, 5]), "", "g", "", "given")
    sample = Sample([1, 2, 3], 2, 1, [[neighbour], [], [given]], "ab", "c", "end", [-0.5], True)
    read = sample_from_json(json.loads(json.dumps(sample_to_json(sample))))
    for row, expected in zip(read.neighbours, sample.neighbours, strict=True):
        for found, wanted in zip(row, expected, strict=True):
            np.testing.assert_array_equal(found.tokens, wanted.tokens)
            assert {**vars(found), "tokens": 0} == {**vars(wanted), "tokens": 0}
    assert {**vars(read), "neighbours": 0} == {**vars(sample), "neighbours": 0}
