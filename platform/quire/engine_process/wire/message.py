"""The base class of the messages between the API process and the engine process."""

from __future__ import annotations

import msgspec


class WireMessage(msgspec.Struct, frozen=True, tag=True):
    """Base class of all messages."""
