"""Why no token can be chosen for a seq: the grammar's fault, the model's, a logits processor's, or the request's own.

It looks only at rows that have no token, after the fact.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from quire.errors import BadRequest, PluginFailed, QuireError
from quire.sampling import BeamSearchParams

if TYPE_CHECKING:
    from quire.engine.sampler import Chooser


def no_token_error(row: Chooser, logits: Tensor, mask: Tensor | None, processors: Collection[str]) -> QuireError:
    """The error of one row.

    logits: [vocab], as they were when a token was to be chosen. mask: what the grammar allowed, int32
    [ceil(vocab / 32)], if it was asked. processors: plugins whose logits processors the row uses.
    """
    if row.constraint is not None and mask is not None and not mask.any():
        return PluginFailed(f"The grammar of plugin {row.constraint.plugin!r} allows no token, though it is not done.")
    plugins = " and ".join(f"plugin {name!r}" for name in sorted(processors))
    blamed = f"the logits processors of {plugins}" if plugins else ""
    if bool((torch.isnan(logits) | (logits == torch.inf)).any()):
        gave = f"the model or {blamed}" if blamed else "the model"
        return PluginFailed(f"No token can be chosen: {gave} gave logits that are no numbers.")
    asked = list(_fields(row))
    forbidding = " and ".join([*(f"`{name}`" for name in asked), *([blamed] if blamed else [])])
    if not forbidding:
        return PluginFailed("No token can be chosen: the model gave no finite logits.")
    message = (
        f"No token can be chosen: {forbidding} {'together forbid' if ' and ' in forbidding else 'forbid'} every one."
    )
    return PluginFailed(message) if blamed else BadRequest(message, asked[0])


def _fields(row: Chooser) -> Iterator[str]:
    """Fields of the request that forbid tokens here."""
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
