"""A plugin for lm-evaluation-harness: a run and a datastore as the harness's model `retro`.

Importing this module registers it. The harness downloads its own data; `write_tasks` gives it
a task over data from `retro fetch`, which works without a network.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retro import catalogue
from retro.config import EvaluationConfig
from retro.errors import ConfigError, MissingExtraError
from retro.generation.request import Choice
from retro.retrieval.retriever import Retriever
from retro.scoring.targets import Prompted, TargetScores, encode_pair, score_targets
from retro.workspace import open_run

try:
    import lm_eval.models  # noqa: F401  the harness fills its registry once, and only if it is empty
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError:
    raise MissingExtraError("lm-eval", "harness") from None

TASK = """\
task: retro_lambada
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
output_type: loglikelihood
test_split: test
doc_to_text: "{{{{request.context}}}}"
doc_to_target: "{{{{request.continuation}}}}"
metric_list:
  - metric: perplexity
    aggregation: perplexity
    higher_is_better: false
  - metric: acc
    aggregation: mean
    higher_is_better: true
metadata:
  version: 1.0
"""
MAX_TOKENS = 256
"""The most tokens in an answer, if a task does not say."""


@register_model("retro")
class RetroLM(LM):  # type: ignore[misc]
    """A run as the harness sees it. With k = 0 it is RETRO[OFF], or a baseline."""

    def __init__(
        self,
        work: str | Path,
        run: str = "retro",
        k: int = 2,
        window: int = 2048,
        batch_size: int | str | None = 8,
        datastore: str | Path | None = None,
        **_ignored: Any,
    ) -> None:
        """`work` is a workspace with the run `run`, or a run's folder.

        `datastore` is used in place of the workspace's own.
        """
        super().__init__()
        self.k = k
        self.size = int(str(batch_size)) if str(batch_size).isdecimal() else 8  # it may be "auto", or nothing
        self.sampler = open_run(work, run, datastore).sampler(max(k, 1), retrieval=k > 0)
        self.retriever = self.sampler.retriever if isinstance(self.sampler.retriever, Retriever) else None
        # Half a window of context at least, where the text has it.
        self.config = EvaluationConfig(window=window, stride=window // 2, batch_size=self.size)

    def loglikelihood(
        self, requests: "list[Instance]", disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Natural log-probability of each continuation, and whether greedy
        generation gives it."""
        scores = self._score([encode_pair(self.sampler.tokenizer, *request.args) for request in requests])
        answers = list(zip(_nats(scores), scores.greedy.tolist(), strict=True))
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return answers

    def loglikelihood_rolling(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[float]:
        """Natural log-probability of whole texts, in sliding windows.

        The first token has no context and is scored as uniform over the vocabulary.
        """
        items = [encode_pair(self.sampler.tokenizer, "", *request.args) for request in requests]
        answers = _nats(self._score(items))
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, answer)
        return answers

    def generate_until(self, requests: "list[Instance]", disable_tqdm: bool = False) -> list[str]:
        """Texts from the sampler, greedy unless a request asks to sample."""
        answers = [""] * len(requests)
        # A batch has one set of settings, so requests are grouped by settings first.
        settings: dict[tuple[Choice, int], list[int]] = {}
        for number, request in enumerate(requests):
            settings.setdefault(_choice(request.args[1]), []).append(number)
        for (choice, max_tokens), numbers in settings.items():
            for first in range(0, len(numbers), self.size):
                part = numbers[first : first + self.size]
                prompts = [requests[number].args[0] for number in part]
                samples = self.sampler.generate_all(prompts, max_tokens=max_tokens, choice=choice)
                for number, (sample,) in zip(part, samples, strict=True):
                    answers[number] = sample.text
                    self.cache_hook.add_partial("generate_until", requests[number].args, sample.text)
        return answers

    def _score(self, items: Sequence[Prompted]) -> TargetScores:
        return score_targets(self.sampler.model, items, self.config, (self.k,), self.retriever)[self.k]


def _nats(scores: TargetScores) -> list[float]:
    # We count bits of surprise; the harness wants natural log-probabilities.
    found: list[float] = (-math.log(2.0) * scores.bits).tolist()
    return found


def _choice(settings: dict[str, Any]) -> tuple[Choice, int]:
    """Translate the harness's generation settings into ours."""
    # It may be one text, several, or None.
    until = settings.get("until") or []
    stop = tuple([until] if isinstance(until, str) else until)
    # The harness may give a temperature without meaning to sample.
    temperature = float(settings.get("temperature", 1.0)) if settings.get("do_sample") else 0.0
    choice = Choice(temperature=temperature, top_p=float(settings.get("top_p", 1.0)), stop=stop)
    return choice, int(settings.get("max_gen_toks", MAX_TOKENS))


def write_tasks(folder: Path) -> Path:
    """Write the task `retro_lambada` over fetched data into a folder for `--include_path`."""
    folder.mkdir(parents=True, exist_ok=True)
    catalogue.fetch_if_missing("lambada")
    file = catalogue.fetched("lambada").file("requests.jsonl.gz")
    (folder / "retro_lambada.yaml").write_text(TASK.format(file=file))
    return folder


def evaluate_with_harness(model: RetroLM, tasks: Sequence[str], limit: int | None = None) -> dict[str, Any]:
    """The harness's own results for a model.

    Tasks are the harness's names, task files, or `retro_lambada`.
    """
    from lm_eval.evaluator import simple_evaluate
    from lm_eval.tasks import TaskManager

    own = str(write_tasks(catalogue.cache_dir() / "harness")) if "retro_lambada" in tasks else None
    manager = TaskManager(include_path=own)
    unknown = [name for name in tasks if not Path(name).exists() and not manager.match_tasks([name])]
    if unknown:
        raise ConfigError(
            f"the harness has no task {unknown[0]!r}; expected one of its own names, a task's file, "
            "or retro_lambada"
        )
    found = simple_evaluate(
        model=model,
        tasks=list(tasks),
        limit=limit,
        task_manager=manager,
        log_samples=False,
        bootstrap_iters=1000,
    )
    assert found is not None  # only other processes than the first get nothing
    return dict(found)
