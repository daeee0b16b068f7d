"""The error of a row without a token: caused by the grammar, the model, a logits processor, or the request itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.errors import BadRequest, PluginFailed, QuireError
from quire.params.sampling import BeamSearchParams

if TYPE_CHECKING:
    from quire.engine.sampling.sampler import SamplingState


def no_token_error(row: SamplingState, logits: Tensor, mask: Tensor | None, processors: Collection[str]) -> QuireError:
    """logits: [vocab], from which no token could be drawn. processors: plugins whose logits processors the row uses.

    mask: bits of the tokens that the grammar allows, int32 [ceil(vocab / 32)]; None if the grammar was not asked.
    """
    if row.constraint is not None and mask is not None and not mask.any():
        return PluginFailed(f"The grammar of plugin {row.constraint.plugin!r} allows no token, though it is not done.")
    plugins = " and ".join(f"plugin {name!r}" for name in sorted(processors))
    blamed = f"the logits processors of {plugins}" if plugins else ""
    if bool((torch.isnan(logits) | (logits == torch.inf)).any()):
        gave = f"the model or {blamed}" if blamed else "the model"
        return PluginFailed(f"No token can be chosen: {gave} returned logits that are not finite.")
    asked = list(_fields(row))
    forbidding = " and ".join([*(f"`{name}`" for name in asked), *([blamed] if blamed else [])])
    if not forbidding:
        return PluginFailed("No token can be chosen: the model returned no finite logits.")
    message = (
        f"No token can be chosen: {forbidding} {'together forbid' if ' and ' in forbidding else 'forbid'} every one."
    )
    return PluginFailed(message) if blamed else BadRequest(message, asked[0])


def _fields(row: SamplingState) -> Iterator[str]:
    """Fields of the request that ban tokens in this step."""
    params = row.params
    if isinstance(params, BeamSearchParams):
        return
    if params.allowed_token_ids is not None:
        yield "allowed_token_ids"
    if params.bad_word_ids:
        yield "bad_words"
    if params.min_tokens > len(row.output_ids):
        yield "min_tokens"
    if params.logit_bias:
        yield "logit_bias"
    if params.structured is not None and row.constraint is not None:
        yield params.structured.param
