"""The error of a request whose model gave logits that are no numbers; `EngineStats` counts those."""

from __future__ import annotations

from quire.errors import PluginFailed

NOT_FINITE = PluginFailed("No token can be chosen: the model gave logits that are no numbers.").told
