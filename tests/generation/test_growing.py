from retro.generation.choice import Choice
from retro.generation.growing import Growing
from retro.generation.sample import Sample
from retro.workspace import Workspace


def test_tokens_and_neighbours_behind_a_stop_text_are_dropped(workspace: Workspace) -> None:
    """Of a, b, c with the stop text "bc" only a remains, and a chunk that was complete before is so no longer."""
    tokenizer = workspace.datastore().tokenizer
    a, b, c = (tokenizer.encode(letter)[0] for letter in "abc")
    growing = Growing(Sample([a], 1, 3, log_probs=[]), tokenizer, Choice(stop=("bc",)), 9, "seed")
    told = [growing.take(a, -1.0), growing.take(b, -2.0)]
    growing.sample.neighbours.append([])
    told.append(growing.take(c, -3.0))
    assert [(token.text, token.finish) for token in told] == [("a", None), ("", None), ("", "stop")]
    sample = growing.sample
    assert (sample.tokens, sample.text, sample.log_probs, sample.neighbours) == ([a, a], "a", [-1.0], [])
    assert growing.unsearched() == []
