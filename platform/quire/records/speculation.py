"""Drafters: they guess the next tokens of sequences, which the model then verifies in one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quire.records.context import Context

if TYPE_CHECKING:
    from torch import Tensor

    from quire.params.sampling import SamplingParams
    from quire.types import HiddenStates


@dataclass(frozen=True, slots=True)
class DraftQuery:
    """A sequence to draft for.

    token_ids: prompt and output so far, to be read only; they stay the same list while a sequence grows. max_drafts:
    at least 1. seed: of the sequence's random numbers (`quire.engine.sampling.rng`). adapters: names. scope: differs
    between sequences that may not learn from each other: those of other adapters, weights of adapters, or cache salts.
    """

    seq_id: int
    token_ids: Sequence[int]
    prompt_len: int
    max_drafts: int
    params: SamplingParams
    seed: int
    adapters: tuple[str, ...] = ()
    scope: bytes = b""


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses of the tokens that follow, () = none.

    probs: float32 [len(token_ids), vocab], the distributions that they were drawn from; None if each was certain. With
    `acceptance` "rejection", answers keep their distribution only if which token was drawn does not decide whether it
    is proposed. chances: by estimate, the probability that each draft and all before it are right, descending; the
    engine verifies those that are worth their time. () = it decides by how many were right before.
    """

    token_ids: Sequence[int] = ()
    probs: Tensor | None = None
    chances: Sequence[float] = ()


class DrafterImpl(Protocol):
    """Drafts for the sequences of one model. It is called between steps, in the thread of the steps.

    An attribute `memory_bytes`, if there is one, is what it takes of the memory of the model's device. `adapter_names`
    are the adapters of its own that requests may choose (`SamplingParams.speculative_lora`).
    """

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        """A draft for each query, of at most `max_drafts` tokens.

        A sequence may come for the first time, come with tokens that were not drafted, and come back after `end`.
        """
        ...

    def end(self, seq_ids: Sequence[int]) -> None:
        """Free the state of sequences; some may be unknown."""
        ...


@dataclass(frozen=True, slots=True)
class ReadsHidden:
    """Which hidden states a drafter reads.

    every: those of every token that a step computes, except rejected drafts; otherwise those of the last such token of
    each sequence that samples. Tokens found in the prefix cache are not computed, so they have none. before_blocks:
    blocks of the model whose inputs it also reads, as EAGLE 3 does.
    """

    every: bool = False
    before_blocks: tuple[int, ...] = ()


class HiddenReader(DrafterImpl, Protocol):
    """A drafter that reads hidden states of the model. Only what it reads is computed for it."""

    @property
    def reads_hidden(self) -> ReadsHidden: ...

    def observe(self, states: Sequence[HiddenStates]) -> None:
        """Read the hidden states of a step; their rows are valid during the call. Ended sequences may be among them."""
        ...


@dataclass(frozen=True, kw_only=True)
class DrafterContext(Context):
    """What a drafter is built with, beside what all plugins get.

    settings: of --speculative-config, those that the record names. target: the loaded model
    (`quire.engine.loading.load.LoadedModel`), for drafters that use its weights. max_drafts: the most that it will be
    asked for. max_num_seqs, max_model_len: of the model. load_draft_model: builds a drafter that runs a model of its
    own, from a mapping with `model` and fields of `quire.settings.model_config.ModelConfig`; raises ConfigError.
    wants_probs: whether `Draft.probs` is read. find_folder: the folder of draft heads, from a folder, a hub id or the
    name of a demo, and a revision or None; raises StartupError.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    target: Any = None
    max_drafts: int = 1
    max_num_seqs: int = 1
    max_model_len: int = 1
    load_draft_model: Callable[[Mapping[str, Any]], DrafterImpl] | None = None
    wants_probs: bool = False
    find_folder: Callable[[str, str | None], Path] | None = None


@dataclass(frozen=True)
class Drafter:
    """A way to draft, chosen by `method` of --speculative-config.

    settings: keys of --speculative-config that it reads. `build` raises `quire.errors.ConfigError` for wrong values.
    """

    name: str
    build: Callable[[DrafterContext], DrafterImpl]
    settings: tuple[str, ...] = ()
