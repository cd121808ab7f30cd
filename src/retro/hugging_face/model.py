"""The registered config and model classes: our runs behind transformers' interface."""

import copy
import inspect
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast

from retro import catalogue
from retro.errors import ConfigError
from retro.fitting.fitted import FittedModel
from retro.generation.request import Retrieval
from retro.generation.sampler import Sampler
from retro.hugging_face.cache import RetroCache, Search
from retro.model.protocol import TrainableModel
from retro.model.weights import hub_config
from retro.retrieval.retriever import Searcher
from retro.run import Run

IGNORED = (
    *(
        "_from_auto",
        "adapter_kwargs",
        "trust_remote_code",
        "use_safetensors",
        "low_cpu_mem_usage",
        "weights_only",
    ),
    *("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token"),
    *("state_dict", "_commit_hash", "tp_plan"),
)
"""What transformers hands on to `from_pretrained` and a run's folder has no use for."""
OUTPUTS = ("output_attentions", "output_hidden_states")


class RetroHubConfig(PretrainedConfig):  # type: ignore[misc]
    """What transformers is told of a model of our own; `run.json` beside it says the rest."""

    model_type = "retro"


class RetroFittedHubConfig(PretrainedConfig):  # type: ignore[misc]
    """What transformers is told of a base with retrieval."""

    model_type = "retro-fitted"


class RetroForCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A model of our own with transformers' interface.

    With a `retriever`, the neighbours of every complete chunk are searched while it reads and writes; without
    one it runs without retrieval. Chunks are counted from each sequence's own first token, whatever padding
    the attention mask hides before it.
    """

    config_class: ClassVar[Any] = RetroHubConfig
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False

    def __init__(self, config: PretrainedConfig, model: TrainableModel | None = None) -> None:
        super().__init__(config)
        if model is None:
            raise ConfigError(
                f"{type(self).__name__} was made of a config alone; expected a trained model; "
                "open a run's folder with from_pretrained, or give it a model"
            )
        self.model = model
        self.retrieval = Retrieval()
        """How neighbours are searched: how many, for every which chunk, from which sources."""
        self.run: Run | None = None
        """Where it was opened from, whose tokenizer a datastore must have."""
        self._retriever: Searcher | None = None
        if isinstance(model, FittedModel):
            # With the base's own defaults, so that both generate alike.
            base: Any = model.base
            self.generation_config = copy.deepcopy(base.generation_config)
            self.generation_config.pad_token_id = config.pad_token_id
        else:
            # Never trained, and never drawn by the sampler.
            self.generation_config.suppress_tokens = [model.facts.pad_id]
        self.eval()

    @staticmethod
    def of(model: TrainableModel, retriever: Searcher | None = None) -> "RetroForCausalLM":
        """A model that is there already, as `retro.fit` and `retro.load` give it."""
        settings = hub_config(model)
        kind = settings.pop("model_type")
        made = CLASSES[kind](CLASSES[kind].config_class(**settings), model)
        made.retriever = retriever
        return made

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *_: Any, config: PretrainedConfig | None = None, **options: Any
    ) -> "RetroForCausalLM":
        """Open a run's folder, or a hub id of one."""
        name = str(path)
        dtype, other = options.pop("dtype", None), options.pop("torch_dtype", None)
        device = options.pop("device_map", None)
        unknown = [key for key, value in options.items() if key not in IGNORED and value is not None]
        if unknown:
            raise ConfigError(
                f"{unknown[0]} was given for {name}, a model of retro; expected dtype and device_map alone; "
                "leave it out"
            )
        if isinstance(device, dict) or device == "auto":
            raise ConfigError(
                f"device_map is {device!r}; expected one device, as hooks do not follow layers to several; "
                'give it "cpu" or "cuda"'
            )
        folder = catalogue.folder_of_base(name)
        run = Run(folder)
        made = RetroForCausalLM.of(run.load())
        made.run = run
        made.name_or_path = made.config._name_or_path = name
        if (folder / "generation_config.json").exists():
            made.generation_config = GenerationConfig.from_pretrained(folder)
        wanted = dtype or other
        if wanted is not None and wanted != "auto":
            made = made.to(getattr(torch, wanted) if isinstance(wanted, str) else wanted)
        return made if device is None else cast(RetroForCausalLM, made.to(device))

    def save_pretrained(self, save_directory: str | Path, **_: Any) -> None:
        """Write the folder that `from_pretrained` and `retro.load` read; the base itself is not written."""
        loose: Any = self.model
        loose.save(save_directory)
        self.generation_config.save_pretrained(save_directory)

    # Retrieval

    @property
    def retriever(self) -> Searcher | None:
        """Where neighbours are looked for; None for a model that runs without retrieval."""
        return self._retriever

    @retriever.setter
    def retriever(self, retriever: Searcher | None) -> None:
        if retriever is not None:
            if not self.model.facts.retrieves:
                raise ConfigError("a baseline was given a retriever; expected a model that reads neighbours")
            Sampler(self.model, retriever)  # refuses other chunks, and more tokens than the model knows
            if self.run is not None and self.run.carries_tokenizer:
                self.run.expect_same_tokenizer(retriever.tokenizer.fingerprint, "the datastore")
        self._retriever = retriever

    @property
    def search(self) -> Search | None:
        return None if self.retriever is None else (self.retriever, self.retrieval)

    # Computing

    def forward(
        self,
        input_ids: Int[Tensor, "batch seq"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: RetroCache | None = None,
        use_cache: bool | None = None,
        labels: Int[Tensor, "batch seq"] | None = None,
        logits_to_keep: int | Tensor = 0,
        neighbours: Int[Tensor, "batch chunk neighbour retrieved"] | None = None,
        neighbour_mask: Tensor | None = None,
        return_dict: bool | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token; `neighbours` take the place of what the retriever would find.

        They are those of complete chunks, counted from each sequence's own first token.
        """
        tokens = _expect_tokens(input_ids, options)
        cache = self._expect_cache(past_key_values, use_cache, neighbours)
        if cache is not None and (cache.rows or (isinstance(logits_to_keep, int) and logits_to_keep == 1)):
            logits = _kept(self._grow(cache, tokens, attention_mask), logits_to_keep)
        else:
            if neighbours is None:
                neighbours, neighbour_mask = self._find(tokens, attention_mask)
            if neighbours is None and isinstance(self.model, FittedModel):
                logits = _ask_base(self.model, tokens, attention_mask, position_ids, logits_to_keep)
            else:
                whole = self._read(tokens, attention_mask, neighbours, neighbour_mask)
                logits = _kept(whole, logits_to_keep)
            if cache is not None:
                cache.fill(_rows(tokens, attention_mask), tokens.shape[1])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, **options
            )
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)

    def generate(self, *inputs: Any, **options: Any) -> Any:
        """As transformers' own, with neighbours searched as chunks are completed."""
        config = options.get("generation_config")
        for kind in (options.get("cache_implementation"), getattr(config, "cache_implementation", None)):
            if kind is not None:
                raise ConfigError(
                    f"cache_implementation is {kind!r}; expected none, as neighbours need a cache of "
                    "their own; leave it out"
                )
        uses_cache = options.get("use_cache", getattr(config or self.generation_config, "use_cache", True))
        if uses_cache is not False and options.get("past_key_values") is None:
            options["past_key_values"] = RetroCache(self.model, self.search)
        return super().generate(*inputs, **options)

    def _expect_cache(
        self, given: Any, use_cache: bool | None, neighbours: Tensor | None
    ) -> RetroCache | None:
        """The cache to use, or None; other kinds would lose the neighbours."""
        if given is not None and not isinstance(given, RetroCache):
            raise ConfigError(
                f"the cache is a {type(given).__name__}; expected a RetroCache, which keeps the "
                "neighbours too; leave past_key_values and cache_implementation out"
            )
        if neighbours is not None and (given is not None or use_cache):
            raise ConfigError(
                "neighbours were given to a model that generates; expected a retriever, which finds "
                "those of new chunks as well; set model.retriever"
            )
        return RetroCache(self.model, self.search) if given is None and use_cache else given

    def _find(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
        """What the retriever finds for all complete chunks."""
        if self.search is None:
            return None, None
        cache = RetroCache(self.model, self.search)
        cache.fill(_rows(tokens, mask), tokens.shape[1])
        return cache.stacked()

    def _grow(
        self, cache: RetroCache, tokens: Int[Tensor, "batch seq"], mask: Tensor | None
    ) -> Float[Tensor, "batch new vocab"]:
        """Logits of the tokens that are new to the cache, of a prompt only the last."""
        if not cache.rows:
            cache.fill(_rows(tokens, mask), tokens.shape[1])
            # A copy, as the decoding may compute in inference mode.
            return cache.read()[:, None].clone()
        return torch.stack([cache.feed(column) for column in tokens.T.tolist()], 1)

    def _read(
        self,
        tokens: Int[Tensor, "batch seq"],
        mask: Tensor | None,
        neighbours: Tensor | None,
        neighbour_mask: Tensor | None,
    ) -> Float[Tensor, "batch seq vocab"]:
        """Logits of whole sequences; at padding they mean nothing."""
        loose: Any = self.model
        if mask is None or bool(mask.all()):
            return cast(Tensor, loose(tokens, neighbours, neighbour_mask))
        # Each sequence is moved to the front, where its chunks begin, and its logits back to their places.
        rows = _rows(tokens, mask)
        moved = tokens.new_full((len(rows), max(map(len, rows))), self.model.facts.pad_id)
        for number, row in enumerate(rows):
            moved[number, : len(row)] = tokens.new_tensor(row)
        found: Tensor = loose(moved, neighbours, neighbour_mask)
        result = found.new_zeros(*tokens.shape, found.shape[-1])
        for number, row in enumerate(rows):
            result[number, mask[number].bool()] = found[number, : len(row)]
        return result


class RetroFittedForCausalLM(RetroForCausalLM):
    """A base with retrieval, with transformers' interface."""

    config_class: ClassVar[Any] = RetroFittedHubConfig


CLASSES: dict[str, type[RetroForCausalLM]] = {
    "retro": RetroForCausalLM,
    "retro-fitted": RetroFittedForCausalLM,
}


def register() -> None:
    """Let transformers' Auto classes know our models."""
    for name, kind in CLASSES.items():
        AutoConfig.register(name, kind.config_class, exist_ok=True)
        AutoModelForCausalLM.register(kind.config_class, kind, exist_ok=True)


def _expect_tokens(tokens: Tensor | None, options: dict[str, Any]) -> Tensor:
    """Refuse what only a base could answer."""
    refused = [name for name in ("inputs_embeds", *OUTPUTS) if options.get(name) is not None]
    if tokens is None or any(options[name] is not False for name in refused):
        raise ConfigError(
            f"{refused[0] if refused else 'no input_ids'} was given; expected input_ids alone, as "
            "neighbours are searched by tokens, and nothing but logits is given back; ask the base itself"
        )
    return tokens


def _ask_base(
    model: FittedModel, tokens: Tensor, mask: Tensor | None, positions: Tensor | None, keep: int | Tensor
) -> Tensor:
    """The base itself, told what we were told: the same numbers to the bit."""
    base: Any = model.base
    told = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, "logits_to_keep": keep}
    known = {
        name: value for name, value in told.items() if name in inspect.signature(base.forward).parameters
    }
    logits: Tensor = base(**known, use_cache=False).logits
    return logits if "logits_to_keep" in known else _kept(logits, keep)


def _kept(logits: Float[Tensor, "batch seq vocab"], keep: int | Tensor) -> Float[Tensor, "batch kept vocab"]:
    """The last positions, all for 0, or those that are named."""
    return logits[:, slice(-keep, None) if isinstance(keep, int) else keep]


def _rows(tokens: Int[Tensor, "batch seq"], mask: Tensor | None) -> list[list[int]]:
    """The tokens of each sequence, without padding."""
    if mask is None:
        return cast(list[list[int]], tokens.tolist())
    return [row[real.bool()].tolist() for row, real in zip(tokens, mask, strict=True)]
