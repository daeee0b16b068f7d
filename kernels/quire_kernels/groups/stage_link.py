"""The connection over which a rank of one stage of a model sends tensors to a rank of the next stage."""

from __future__ import annotations

import json
import socket
import struct
import weakref
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from quire_kernels.groups.group import RankLost

HEADING = struct.Struct(">I")
"""Length of the header, which is JSON."""

LOST = "a rank of another stage of this model has ended"


class StageLink:
    """One end. Messages arrive in the order in which they are sent; one thread sends, one receives.

    The connection is closed with the object.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(True)
        weakref.finalize(self, connection.close)

    def send(self, header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Send what JSON can hold, and tensors by name; waits while the other end has not read what was sent before.
        Raises RankLost.
        """
        arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        shapes = [[name, str(each.dtype).removeprefix("torch."), list(each.shape)] for name, each in arrays.items()]
        body = json.dumps({**header, "tensors": shapes}).encode()
        try:
            self._socket.sendall(HEADING.pack(len(body)) + body)
            for each in arrays.values():
                if each.numel():
                    self._socket.sendall(_bytes(each))
        except OSError as error:
            raise RankLost(LOST, lasting=True) from error

    def receive(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The next message, with new tensors on the CPU. Raises RankLost if the other end is gone."""
        (length,) = HEADING.unpack(self._exactly(memoryview(bytearray(HEADING.size))))
        header: dict[str, Any] = json.loads(bytes(self._exactly(memoryview(bytearray(length)))))
        found: dict[str, Tensor] = {}
        for name, dtype, shape in header.pop("tensors"):
            found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            if found[name].numel():
                self._exactly(_bytes(found[name]))
        return header, found

    def _exactly(self, memory: memoryview) -> memoryview:
        """Fill the memory with what arrives."""
        filled = 0
        while filled < len(memory):
            try:
                count = self._socket.recv_into(memory[filled:])
            except OSError as error:
                raise RankLost(LOST, lasting=True) from error
            if not count:
                raise RankLost(LOST, lasting=True)
            filled += count
        return memory

    def close(self) -> None:
        """End the connection, also for a thread that waits for a message. Any thread may call it."""
        with suppress(OSError):  # the other end is gone
            self._socket.shutdown(socket.SHUT_RDWR)


def _bytes(tensor: Tensor) -> memoryview:
    """The memory of a contiguous tensor on the CPU."""
    return tensor.view(-1).view(torch.uint8).numpy().data
