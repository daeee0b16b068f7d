"""The messages about adapters that are loaded, unloaded and listed."""

from __future__ import annotations

from quire.engine_process.wire.message import WireMessage
from quire.types.adapter_info import AdapterInfo


class LoadAdapter(WireMessage, frozen=True, tag=True, kw_only=True):
    """Load an adapter; answered by `AdapterLoaded` or `CallFailed`.

    replacing: the name may be in use already. wait: answer when the adapter can run requests; otherwise answer at once
    and send `AdapterChanged` when it is loaded or has failed.
    """

    call_id: int
    adapter: AdapterInfo
    replacing: bool = False
    wait: bool = True


class RegisterAdapter(WireMessage, frozen=True, tag=True):
    """Another engine process has loaded this adapter: register it in place of one of the same name. It is read when a
    request needs it. There is no answer."""

    adapter: AdapterInfo


class UnloadAdapter(WireMessage, frozen=True, tag=True):
    """Unload an adapter; answered by `UnloadDone`, when at most running requests use its memory, or `CallFailed`."""

    call_id: int
    model: str
    name: str


class ListAdapters(WireMessage, frozen=True, tag=True):
    """List the adapters of every model; answered by `AdapterListReply`."""

    call_id: int


class AdapterLoaded(WireMessage, frozen=True, tag=True):
    """An adapter was loaded, or is being loaded (`info.state`)."""

    call_id: int
    info: AdapterInfo


class AdapterChanged(WireMessage, frozen=True, tag=True):
    """An adapter for which no call is waiting was loaded, failed to load, or was retired."""

    info: AdapterInfo


class AdapterListReply(WireMessage, frozen=True, tag=True):
    """The adapters of every model."""

    call_id: int
    infos: list[AdapterInfo]
