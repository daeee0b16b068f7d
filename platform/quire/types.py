"""The plain data that travels: a request down to the engine, a plan to the device, a delta back up.

Everything here is frozen, picklable and, but for media, free of tensors. Sampling parameters: `quire.sampling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from quire.errors import Told
from quire.pooling import Pooled, PoolingParams
from quire.sampling import BeamSearchParams, SamplingParams
from quire.source_info import SourceInfo
from quire.stats import EngineStats as EngineStats, RequestSummary as RequestSummary  # noqa: PLC0414 (re-exported)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Params: TypeAlias = SamplingParams | BeamSearchParams | PoolingParams
"""What to do with a prompt: sample, search, or pool."""

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """A run of prompt positions whose embeddings come from a tower instead of the token table.

    `start`, `length`: prompt positions. `tensors`: the tower's inputs. `digest` identifies the content, so that equal
    media share pages and different ones never do. positions: int64 [axes, length], where its tokens stand for rotary
    embeddings, from its own place on; what follows stands one beyond the largest. None = one after another.
    """

    modality: str
    start: int
    length: int
    digest: str
    tensors: Mapping[str, Tensor]
    positions: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """What the model reads. Its length is final: later stages add nothing.

    token_types: of each token, 0 or 1, for models that tell a pair of texts apart by them; () = all 0.
    """

    token_ids: tuple[int, ...]
    text: str | None = None
    media: tuple[Media, ...] = ()
    token_types: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRef:
    """An adapter as a page key sees it: reloading a name makes another revision."""

    name: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class AdapterUse:
    """An adapter at work on a request. weight: what its share is multiplied by, beside those of others."""

    ref: AdapterRef
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter as the Python API names it, with vLLM's names of fields.

    lora_path: its folder; empty = plugins are asked where it lies. lora_int_id is not used. weight: see `AdapterUse`.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt and what to do with it, giving `params.num_seqs` seqs. `adapters`: those at work on it, () = the base
    model alone. `priority`: smaller runs first under the priority policy. `cache_salt`: seqs share cached pages only
    with equal salts. `client`: whose it is; clients share the engine evenly.
    """

    id: str
    prompt: Prompt
    params: Params
    adapters: tuple[AdapterUse, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Compute `len(token_ids)` tokens of a seq, the first at position `start`.

    `new_pages` go into the seq's page table from entry `first_page` on (a copied page replaces a shared one, others
    continue the table; the first chunk after a `SeqStart` brings all of it); `samples`: the last token's logits give
    the next token. The runner keeps the rest of the table from earlier chunks.
    """

    seq_id: int
    start: int
    token_ids: Sequence[int]
    new_pages: Sequence[int]
    samples: bool
    first_page: int = 0


@dataclass(frozen=True, slots=True)
class SeqStart:
    """What the runner must know of a seq before its first chunk (again after a preemption)."""

    seq_id: int
    params: Params
    seed: int
    prompt_ids: Sequence[int]
    output_ids: Sequence[int]
    media: tuple[Media, ...] = ()
    adapters: tuple[AdapterUse, ...] = ()
    token_types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """One step: which tokens of which seqs, after which movements of pages.

    Order of effect: `ended` rows are forgotten, `swaps_out`, `swaps_in` and `copies` move pages
    (pairs of source and destination), `started` rows are made, then `chunks` are computed.
    """

    chunks: tuple[Chunk, ...] = ()
    started: tuple[SeqStart, ...] = ()
    ended: tuple[int, ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    swaps_out: tuple[tuple[int, int], ...] = ()
    swaps_in: tuple[tuple[int, int], ...] = ()

    @property
    def num_tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position: the token's own, its rank (1 = most likely), the top ones."""

    token_id: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sampling row gave. `error`: what an error is `told` by, because of which no token was drawn.

    `candidates` (beam search): the most likely continuations as (token id, logprob), best first.
    `forced`: tokens that must follow this one; `done`: a constraint is complete, so the seq stops after them.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
    candidates: tuple[tuple[int, float], ...] = ()
    error: Told | None = None
    done: bool = False
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """Samples by seq id, and log-probabilities of prompt tokens that a chunk has just passed.

    pooled: of seqs that are pooled, and whose last chunk this was.
    failures: seqs whose chunk could not be computed, and why; what they have in their pages is worthless.
    """

    samples: Mapping[int, Sample]
    prompt_logprobs: Mapping[int, Sequence[TokenLogprobs]] = field(default_factory=dict)
    failures: Mapping[int, str] = field(default_factory=dict)
    pooled: Mapping[int, Pooled] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Delta:
    """What steps added to one seq of a request: one step, unless `SamplingParams.stream_interval` says more.

    `index` numbers the seqs of a request (0 … n−1). The first delta of a request carries `num_cached_tokens`, `queue_s`
    (from arrival to the first step) and, when asked for, `prompt_logprobs` (entry 0 is None). `error`: what one is
    `told` by. Beams come in one last delta each, with `cumulative_logprob`; a pooled prompt in one, with `pooled`.
    """

    request_id: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    cumulative_logprob: float | None = None
    error: Told | None = None
    queue_s: float | None = None
    pooled: Pooled | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """What the rest of the platform may know of a loaded model.

    tasks: "generate", "transcribe", "translate", those of `quire.pooling.POOLING_TASKS`, as far as it can. dimensions:
    how many of `embedding_size` numbers a request may ask for: None = no fewer, () = any number, else one of these.
    labels: of classes, in order. token_types: whether it tells a pair of texts apart. position_axes: of media. source:
    what its prompts begin with, if they must. max_logprobs: of a position that a request may ask for, -1 = any number.
    """

    name: str
    aliases: tuple[str, ...]
    root: str
    folder: str
    architecture: str
    dtype: str
    device: str
    max_model_len: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    num_pages: int
    page_size: int
    num_parameters: int
    sampling_defaults: Mapping[str, Any] = field(default_factory=dict)
    modalities: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ("generate",)
    embedding_size: int | None = None
    dimensions: tuple[int, ...] | None = None
    labels: tuple[str, ...] = ()
    token_types: bool = False
    position_axes: int = 1
    source: SourceInfo | None = None
    max_logprobs: int = 20
