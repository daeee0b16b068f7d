"""A request to the engine: prompt, media, adapters and parameters. Only media hold tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from quire.params.pooling import PoolingParams
from quire.params.sampling import BeamSearchParams, SamplingParams
from quire.types.usage import NO_MEDIA, MediaUse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Params: TypeAlias = SamplingParams | BeamSearchParams | PoolingParams
"""What to do with a prompt: sample, beam search, or pool."""

BACKGROUND = "background:"
"""How the names of clients in the background begin. Their requests run behind those of all other clients."""


def background(client: str) -> str:
    """The name under which a client's requests run in the background."""
    return BACKGROUND + client


def in_background(client: str) -> bool:
    """Whether requests of a client run in the background."""
    return client.startswith(BACKGROUND)


@dataclass(frozen=True, kw_only=True, slots=True)
class Media:
    """A run of prompt positions whose embeddings come from a tower instead of the token table.

    start, length: prompt positions. tensors: inputs of the tower. digest: identifies the content, so that equal media
    share pages and different ones never do. positions: rotary positions of its tokens, int64 [axes, length], relative
    to its start; the next token has the largest of them plus one. None = consecutive positions. rows_at: the positions
    that get the tower's rows, int64 [rows], sorted, relative to its start; tokens at the others keep their own
    embeddings. None = all positions.
    """

    modality: str
    start: int
    length: int
    digest: str
    tensors: Mapping[str, Tensor]
    positions: NDArray[np.int64] | None = None
    rows_at: NDArray[np.int64] | None = None

    @property
    def num_rows(self) -> int:
        """Rows that the tower returns for it."""
        return self.length if self.rows_at is None else len(self.rows_at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """The prompt as token ids. Its length is final, except that the engine adds the virtual tokens of an adapter.

    token_types: the type of each token, 0 or 1, for models that take pairs of texts; () = all 0. num_virtual: so many
    of the first token_ids stand for virtual tokens. num_given: so many are not computed, because the adapter brings
    their keys and values. media_use: for accounts.
    """

    token_ids: tuple[int, ...]
    text: str | None = None
    media: tuple[Media, ...] = ()
    token_types: tuple[int, ...] = ()
    num_virtual: int = 0
    num_given: int = 0
    media_use: MediaUse = NO_MEDIA

    @property
    def size(self) -> str:
        """Its length in words, for errors."""
        own = f"{len(self.token_ids) - self.num_virtual} tokens"
        return f"{own}, and its adapter puts {self.num_virtual} before it" if self.num_virtual else own

    def with_virtual(self, count: int, has_kv: bool) -> Prompt:
        """The prompt after `count` virtual tokens. has_kv: they are not computed."""
        return replace(
            self,
            token_ids=(0,) * count + self.token_ids,
            media=tuple(replace(item, start=item.start + count) for item in self.media),
            token_types=(0,) * count + self.token_types if self.token_types else (),
            num_virtual=count,
            num_given=count if has_kv else 0,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterRef:
    """An adapter as a page hash sees it: loading a name again makes a new revision."""

    name: str
    revision: int = 0


@dataclass(frozen=True, slots=True)
class WeightedAdapter:
    """An adapter of a request. weight: the factor of its delta, which is added to those of the other adapters."""

    ref: AdapterRef
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """An adapter as the Python API names it, with vLLM's names of fields.

    lora_path: its folder; empty = plugins resolve the name. lora_int_id: not used. weight: as in `WeightedAdapter`.
    """

    lora_name: str
    lora_int_id: int = 0
    lora_path: str = ""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One prompt and its parameters, which make `params.num_seqs` sequences.

    adapters: () = the base model alone. priority: under the priority policy, smaller runs first. cache_salt: sequences
    share cached pages only if their salts are equal. client: the sender; clients share the engine evenly, except for
    those in the background (see `BACKGROUND`). endpoint: path of the route that it came by, for accounts.
    """

    id: str
    prompt: Prompt
    params: Params
    adapters: tuple[WeightedAdapter, ...] = ()
    priority: int = 0
    cache_salt: str | None = None
    client: str = ""
    endpoint: str = ""
