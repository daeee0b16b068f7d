"""The error of a request whose logits are not finite. `EngineStats.num_corrupted_total` counts these requests."""

from __future__ import annotations

from quire.errors import PluginFailed

NOT_FINITE = PluginFailed("No token can be chosen: the model returned logits that are not finite.").wire
