"""Media on their way to the host: their tensors as raw bytes. It knows no messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from quire.types import Media

if TYPE_CHECKING:
    from torch import Tensor


class WireTensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor: dtype name, shape, and its bytes in row-major order."""

    dtype: str
    shape: list[int]
    data: bytes


class WireMedia(msgspec.Struct, frozen=True, kw_only=True):
    """A `types.Media`."""

    modality: str
    start: int
    length: int
    digest: str
    tensors: dict[str, WireTensor]


def pack_media(media: Media) -> WireMedia:
    """A medium as it travels."""
    return WireMedia(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _pack(tensor) for name, tensor in media.tensors.items()},
    )


def unpack_media(media: WireMedia) -> Media:
    """The medium that has travelled."""
    return Media(
        modality=media.modality,
        start=media.start,
        length=media.length,
        digest=media.digest,
        tensors={name: _unpack(tensor) for name, tensor in media.tensors.items()},
    )


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
