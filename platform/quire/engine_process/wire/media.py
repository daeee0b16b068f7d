"""Media of a prompt in the form in which they are sent: with their tensors as raw bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quire.types import Media

if TYPE_CHECKING:
    from numpy import int64
    from numpy.typing import NDArray
    from torch import Tensor


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: name of its dtype, shape, and bytes in row-major order."""

    dtype: str
    shape: list[int]
    data: bytes


class WireMedia(msgspec.Struct, frozen=True, kw_only=True):
    """A `quire.types.Media` whose tensors can be encoded."""

    modality: str
    start: int
    length: int
    digest: str
    tensors: dict[str, WireTensor]
    positions: WireTensor | None = None
    rows_at: WireTensor | None = None


def pack_media(media: Media) -> WireMedia:
    return WireMedia(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _pack(tensor) for name, tensor in media.tensors.items()},
        positions=None if media.positions is None else _pack_positions(media.positions),
        rows_at=None if media.rows_at is None else _pack_positions(media.rows_at),
    )


def unpack_media(media: WireMedia) -> Media:
    return Media(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _unpack(tensor) for name, tensor in media.tensors.items()},
        positions=None if media.positions is None else _unpack_positions(media.positions),
        rows_at=None if media.rows_at is None else _unpack_positions(media.rows_at),
    )


def _pack_positions(positions: NDArray[int64]) -> WireTensor:
    return WireTensor(positions.dtype.name, list(positions.shape), positions.tobytes())


def _unpack_positions(positions: WireTensor) -> NDArray[int64]:
    import numpy as np

    return np.frombuffer(positions.data, positions.dtype).reshape(positions.shape)


def _pack(tensor: Tensor) -> WireTensor:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return WireTensor(str(tensor.dtype).removeprefix("torch."), list(tensor.shape), data)


def _unpack(tensor: WireTensor) -> Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, tensor.dtype)
    if not tensor.data:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.data), dtype=dtype).reshape(tensor.shape)
