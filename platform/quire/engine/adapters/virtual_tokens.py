"""Virtual tokens: positions that an adapter takes before the prompt of a request (prompt tuning, prefix tuning).

In the engine they are the first positions of a sequence, so that they count against the context length, take pages, and
are found in the prefix cache like all others. No count in an answer includes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.adapters.revision import AdapterRevision
from quire.errors import BadRequest, Overloaded
from quire.types import Prompt, WeightedAdapter


def with_virtual_tokens(prompt: Prompt, uses: Sequence[tuple[WeightedAdapter, AdapterRevision]]) -> Prompt:
    """The prompt as the engine computes it with these adapters. Raises BadRequest for uses that have no meaning."""
    found = [(use, adapter.metadata) for use, adapter in uses if adapter.metadata and adapter.metadata.virtual_tokens]
    if not found:
        return prompt
    names = ", ".join(f"`{use.ref.name}`" for use, _ in found)
    if len(found) > 1:
        raise BadRequest(f"A request can use one adapter that puts tokens before the prompt, not {names}.", "adapters")
    ((use, metadata),) = found
    if use.weight != 1:
        raise BadRequest(
            f"{names} puts tokens before the prompt, so its weight must be 1, not {use.weight}.", "adapters"
        )
    return prompt.with_virtual(metadata.virtual_tokens, metadata.has_virtual_kv)


def check_virtual_tokens(prompt: Prompt, adapter: AdapterRevision) -> None:
    """Raise Overloaded if an adapter was read only after the request came, so that its virtual tokens are missing."""
    if adapter.metadata and adapter.metadata.virtual_tokens and not prompt.num_virtual:
        raise Overloaded(
            f"The adapter `{adapter.ref.name}` was still being loaded when the request came, and it puts tokens before "
            "the prompt; send the request again."
        )
