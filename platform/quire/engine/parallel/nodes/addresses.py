"""Where the first rank listens: at the port that all ranks are given, or at one that torchrun's store tells them."""

from __future__ import annotations

import errno
import json
import socket
from datetime import timedelta
from typing import Any

from quire.engine.parallel.nodes.frames import seconds_until
from quire.engine.parallel.nodes.place import Place
from quire.errors import ConfigError

KEY = "quire/first_rank"
"""Of the store."""

Address = tuple[str, int]


def listen(place: Place) -> socket.socket:
    """A socket on which the first rank listens. Raises ConfigError if it cannot."""
    port = 0 if place.by_store else place.port
    try:
        family, own = _own_address(place)
        listener = socket.create_server((own, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"--master-port {port}: the port is in use; choose another one.") from error
        raise ConfigError(f"--master-addr {place.host}: the first rank cannot listen there: {error}.") from error
    if place.by_store:
        _store(place, place.timeout_s).set(KEY, json.dumps(listener.getsockname()[:2]))
    return listener


def first_rank(place: Place, deadline: float) -> Address:
    """The address of the first rank. Raises OSError or RuntimeError if torchrun's store does not have it in time."""
    if not place.by_store:
        return place.host, place.port
    host, port = json.loads(_store(place, seconds_until(deadline)).get(KEY))
    return host, port


def _own_address(place: Place) -> tuple[socket.AddressFamily, str]:
    """The address of this machine from which it reaches --master-addr, which may be a name of a service."""
    family, kind, _, _, address = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as unsent:
        unsent.connect(address)
        return family, unsent.getsockname()[0]


def _store(place: Place, timeout_s: float) -> Any:
    import torch.distributed  # only torchrun needs it

    distributed: Any = torch.distributed
    return distributed.TCPStore(
        place.host, place.port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=timeout_s)
    )
