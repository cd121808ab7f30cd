"""The sampling loop: sequences that grow together, each as if it were alone.

Sequences join and leave between any two tokens, so the sampler and the server run the same loop: the one
with all sequences from the beginning, the other with whatever is asked for meanwhile.
"""

import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from retro.errors import RetroError
from retro.generation.drawing import draw, penalise, penalise_counted
from retro.generation.request import Choice, Retrieval
from retro.generation.sequence import Growing, Token
from retro.model.protocol import Decoding, LanguageModel
from retro.retrieval.datastore import Neighbour
from retro.retrieval.retriever import Searcher, stack_neighbours

FAULTS = (RetroError, OSError, sqlite3.Error)
"""What a search may fail with: a datastore can be damaged or taken away."""
Group = Sequence[Growing]
"""The samples of one prompt, which is read once for all of them."""


class RunningBatch:
    """Row r of the decoding and of `logits` belongs to `sequences[r]`.

    `draw` and `feed` take turns; in between, what was drawn can be shown. `join` and `leave` come after
    `feed`.
    """

    logits: Float[Tensor, "sequence vocab"]
    """Of each sequence's next token."""

    def __init__(self, model: LanguageModel, window: int = 0, isolate: bool = False) -> None:
        """`isolate`: a sequence whose search fails leaves with its `fault`, and the others go on."""
        self.model = model
        self.window = window
        self.isolate = isolate
        self.sequences: list[Growing] = []
        self.decoding: Decoding = model.begin(window)

    def join(self, groups: Sequence[Group]) -> None:
        """Read the prompts of these groups, and take their sequences in."""
        first = [group[0] for group in groups]
        self._retrieve(first)
        # A prompt that could not be searched for is not read.
        groups = [group for group in groups if group[0].fault is None]
        if not groups:
            return
        for group in groups:
            for sequence in group[1:]:
                sequence.sample.neighbours = list(group[0].sample.neighbours)
        decoding = self.model.begin(self.window)
        logits = self._read_prompts(decoding, [group[0] for group in groups])
        # From a row for each prompt to a row for each sequence.
        prompt_of = [number for number, group in enumerate(groups) for _ in group]
        if len(prompt_of) > len(groups):
            decoding.select(prompt_of)
            logits = logits[prompt_of]
        if self.sequences:
            self.decoding.join(decoding)
            self.logits = torch.cat([self.logits, logits])
        else:
            self.decoding = decoding
            self.logits = logits
        self.sequences += [sequence for group in groups for sequence in group]

    def draw(self) -> list[tuple[Growing, Token]]:
        """Draw the next token of every sequence, and search for the chunks that these tokens complete.

        A sequence that ends is no longer part of the batch.
        """
        drawn = self._draw()
        # Before the tokens are fed, since the last token of a chunk already reads that
        # chunk's neighbours.
        searched = self._retrieve(self.sequences)
        told = []
        for row, (sequence, token) in enumerate(zip(self.sequences, drawn, strict=True)):
            if row in searched:
                token = replace(token, neighbours=sequence.sample.neighbours[-1])
            told.append((sequence, token))
        going_on = [row for row, (sequence, token) in enumerate(told) if _goes_on(sequence, token)]
        self._keep(going_on)
        return told

    def feed(self) -> None:
        """Read each sequence's newest token."""
        if not self.sequences:
            return
        tokens = [sequence.sample.tokens[-1] for sequence in self.sequences]
        # The chunks that these tokens complete were searched just now, so their neighbours
        # are the last in the list.
        completing = [self.sequences[row].sample for row in self.decoding.completing]
        neighbours, mask = self._stack(
            [sample.neighbours[-1] if sample.neighbours else [] for sample in completing]
        )
        self.logits = self.decoding.step(tokens, neighbours, mask)

    def leave(self, sequences: Sequence[Growing]) -> None:
        """Go on without these sequences; those that have left already are no error."""
        leaving = {id(sequence) for sequence in sequences}
        self._keep([row for row, sequence in enumerate(self.sequences) if id(sequence) not in leaving])

    def _read_prompts(self, decoding: Decoding, first: Sequence[Growing]) -> Float[Tensor, "prompt vocab"]:
        """The logits after each prompt."""
        prompts = [sequence.sample.tokens for sequence in first]
        # Shorter prompts get empty chunks up to the longest, so that all fit into one array.
        num_chunks = max(map(len, prompts)) // self.model.facts.chunk_len
        rows = [sequence.sample.neighbours for sequence in first]
        padded = [row + [[]] * (num_chunks - len(row)) for row in rows]
        neighbours, mask = self._stack([found for row in padded for found in row])
        if neighbours is not None and mask is not None:
            neighbours = neighbours.unflatten(0, (len(prompts), num_chunks))
            mask = mask.unflatten(0, (len(prompts), num_chunks))
        return decoding.prefill(prompts, neighbours, mask)

    def _keep(self, rows: list[int]) -> None:
        """Go on with these sequences only."""
        if len(rows) == len(self.sequences):
            return
        self.sequences = [self.sequences[row] for row in rows]
        self.decoding.select(rows)
        self.logits = self.logits[rows]

    def _retrieve(self, sequences: Sequence[Growing]) -> set[int]:
        """Find the neighbours of all complete chunks not searched yet.

        One search serves all sequences that are searched for in the same way. Returns the rows of those.
        """
        asked: dict[tuple[int, Retrieval], list[tuple[int, int, list[int]]]] = {}
        for row, sequence in enumerate(sequences):
            sequence.read_given()
            if sequence.search is not None:
                searcher, retrieval = sequence.search
                due = [(row, *chunk) for chunk in sequence.unsearched()]
                if due:
                    asked.setdefault((id(searcher), retrieval), []).extend(due)
        searched = set()
        for chunks in asked.values():
            rows = [row for row, _, _ in chunks]
            search = sequences[rows[0]].search
            assert search is not None
            try:
                found = retrieve(*search, [(number, tokens) for _, number, tokens in chunks])
            except FAULTS as error:
                if not self.isolate:
                    raise
                for row in rows:
                    sequences[row].fault = error
                continue
            for row, neighbours in zip(rows, found, strict=True):
                sequences[row].sample.neighbours.append(neighbours)
            searched.update(rows)
        return searched

    def _stack(self, neighbours: Sequence[Sequence[Neighbour]]) -> tuple[Tensor, Tensor] | tuple[None, None]:
        # Without any neighbour the model runs as RETRO[OFF]; a baseline would refuse
        # even empty ones.
        if not any(neighbours):
            return None, None
        facts, device = self.model.facts, self.model.device
        values, mask = stack_neighbours(neighbours, facts.retrieved_len, facts.pad_id)
        return torch.from_numpy(values).to(device), torch.from_numpy(mask).to(device)

    @torch.inference_mode()
    def _draw(self) -> list[Token]:
        """Draw the next token of every sequence, and append it."""
        # A copy: the log-probabilities below need the logits as the model gave them.
        logits = self._penalised(self.logits.clone())
        # A pad id behind the vocabulary has no logit to begin with.
        logits[:, self.model.facts.pad_id :][:, :1] = -torch.inf
        # What must not come yet gets no probability, which is surer than drawing again.
        for row, sequence in enumerate(self.sequences):
            if not sequence.may_end:
                logits[row, list(sequence.enders)] = -torch.inf
        uniforms = [sequence.uniform() for sequence in self.sequences]
        tokens = self._drawn(logits, torch.tensor(uniforms, dtype=torch.float64))
        log_probs, top = self._log_probs(tokens)
        rows = zip(self.sequences, tokens, log_probs, top, strict=True)
        return [sequence.take(token, log_prob, best) for sequence, token, log_prob, best in rows]

    def _drawn(
        self, logits: Float[Tensor, "sequence vocab"], uniforms: Float[Tensor, "sequence"]
    ) -> list[int]:
        """A token of each row, drawn as its sequence's choice says; equal choices together."""
        rows_by_choice: dict[tuple[float, int, float], list[int]] = {}
        for row, sequence in enumerate(self.sequences):
            rows_by_choice.setdefault(_cut_offs(sequence.choice), []).append(row)
        tokens = [0] * len(self.sequences)
        for rows in rows_by_choice.values():
            whole = len(rows) == len(tokens)
            part = (logits, uniforms) if whole else (logits[rows], uniforms[rows])
            found = draw(*part, self.sequences[rows[0]].choice).tolist()
            for row, token in zip(rows, found, strict=True):
                tokens[row] = token
        return tokens

    def _penalised(self, logits: Float[Tensor, "sequence vocab"]) -> Float[Tensor, "sequence vocab"]:
        """The logits with the penalties of the sequences that have any."""
        choices = [sequence.choice for sequence in self.sequences]
        rows = [row for row, choice in enumerate(choices) if choice.repetition_penalty != 1]
        if rows:
            seen = torch.zeros(len(rows), logits.shape[1], dtype=torch.bool, device=logits.device)
            for place, row in enumerate(rows):
                seen[place, self.sequences[row].sample.tokens] = True
            penalties = logits.new_tensor([choices[row].repetition_penalty for row in rows])
            logits[rows] = penalise(logits[rows], seen, penalties[:, None])
        rows = [
            row for row, choice in enumerate(choices) if choice.frequency_penalty or choice.presence_penalty
        ]
        if rows:
            counts = logits.new_zeros(len(rows), logits.shape[1])
            for place, row in enumerate(rows):
                written = torch.tensor(self.sequences[row].sample.continuation, dtype=torch.long)
                ones = counts.new_ones(len(written))
                counts[place].index_add_(0, written.to(counts.device), ones)
            frequency = logits.new_tensor([choices[row].frequency_penalty for row in rows])
            presence = logits.new_tensor([choices[row].presence_penalty for row in rows])
            logits[rows] = penalise_counted(logits[rows], counts, frequency[:, None], presence[:, None])
        return logits

    def _log_probs(
        self, tokens: Sequence[int]
    ) -> tuple[list[float | None], list[tuple[tuple[int, float], ...]]]:
        """The log-probability of each token and of the most probable ones, where they were asked for.

        From the model's own logits, before temperature, cut-offs and penalties.
        """
        wanted = [row for row, sequence in enumerate(self.sequences) if sequence.wants_log_probs]
        log_probs: list[float | None] = [None] * len(tokens)
        top: list[tuple[tuple[int, float], ...]] = [()] * len(tokens)
        if not wanted:
            return log_probs, top
        found = self.logits[wanted].log_softmax(-1)
        most = max(self.sequences[row].top_log_probs for row in wanted)
        best, ids = found.topk(min(most, found.shape[1]))
        for place, row in enumerate(wanted):
            log_probs[row] = float(found[place, tokens[row]])
            count = self.sequences[row].top_log_probs
            top[row] = tuple(zip(ids[place, :count].tolist(), best[place, :count].tolist(), strict=True))
        return log_probs, top


def _goes_on(sequence: Growing, token: Token) -> bool:
    return token.finish is None and sequence.fault is None


def _cut_offs(choice: Choice) -> tuple[float, int, float]:
    """What decides, of equal logits, which token is drawn."""
    return choice.temperature, choice.top_k, choice.top_p


def retrieve(
    searcher: Searcher, retrieval: Retrieval, chunks: Sequence[tuple[int, Sequence[int]]]
) -> list[list[Neighbour]]:
    """Neighbours of numbered chunks, in one search; the first chunk of a sequence has number
    0."""
    found: list[list[Neighbour]] = [[] for _ in chunks]
    # Every n-th chunk: with `every` = 2 the second, the fourth and so on.
    due = [place for place, (number, _) in enumerate(chunks) if (number + 1) % retrieval.every == 0]
    if not due:
        return found
    k = retrieval.num_neighbours or searcher.num_neighbours
    tokens = [np.array(chunks[place][1]) for place in due]
    answers = searcher.search(tokens, k, retrieval.sources, retrieval.exclude)
    for place, neighbours in zip(due, answers, strict=True):
        found[place] = neighbours
    return found
