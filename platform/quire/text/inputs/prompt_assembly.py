"""Assembles prompts from the ids of text parts and from mapped media."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from quire.errors import BadRequest, PluginFailed
from quire.records import (
    CountAwareInputProcessor,
    InputProcessor,
    MappedMedia,
    MappedText,
    ModalityAwareInputProcessor,
)
from quire.types import EncoderInputInfo, Media

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

DIGEST_BYTES = 16

PromptPart: TypeAlias = "list[int] | str"
"""Token ids of text, or the modality of a marker."""

MappedItem: TypeAlias = MappedMedia | MappedText
"""The result of an input mapper for one item."""


def mapping(built: InputProcessor, count: int, modalities: Iterable[str]) -> Callable[[Any], MappedItem]:
    """What maps one of `count` items of a prompt with these modalities."""
    if isinstance(built, CountAwareInputProcessor):
        return partial(built.map_with_count, count=count)
    if isinstance(built, ModalityAwareInputProcessor):
        return partial(built.map_beside, modalities=tuple(modalities))
    return built.map


def mapped_items(part: MappedItem) -> Sequence[MappedMedia]:
    """The media of a mapped item, one or several."""
    return part.media if isinstance(part, MappedText) else [part]


def encoder_padding(part: MappedItem, source: EncoderInputInfo) -> list[int]:
    """Padding ids between an encoder input and the text of the decoder; these positions are never computed."""
    (mapped,) = mapped_items(part)
    return [mapped.ids[-1]] * max(0, source.reserved_for(len(mapped.ids)) - len(mapped.ids))


def text_ids(item: Any, encode: Callable[[str, bool], list[int]]) -> Any:
    """The token ids of a text; other items are unchanged."""
    return encode(item, True) if isinstance(item, str) else item


def check_source_length(length: int, source: EncoderInputInfo, name: str, param: str) -> None:
    """Raise `BadRequest` for a text that is too long for the encoder of the model `name`."""
    if length > source.length:
        raise BadRequest(
            f"`{param}` has {length} tokens; the encoder of `{name}` reads at most {source.length}.", param
        )


def interleaved(
    parts: Sequence[PromptPart], mapped: Mapping[str, Sequence[MappedItem]], param: str
) -> list[MappedMedia | list[int]]:
    """The parts of a prompt with the mapped media in their places.

    Raises `BadRequest` if the text contains a marker that belongs to the replacement text of a mapper.
    """
    waiting = {modality: deque(chain.from_iterable(map(mapped_items, given))) for modality, given in mapped.items()}
    for modality, remaining in waiting.items():
        if len(remaining) != parts.count(modality):
            raise BadRequest(f"`{param}` contains text that is reserved for the inside of {modality}.", param)
    return [waiting[part].popleft() if isinstance(part, str) else part for part in parts]


def assemble(
    parts: Sequence[PromptPart], mapped: Mapping[str, Sequence[MappedItem]], param: str
) -> tuple[list[int], tuple[Media, ...]]:
    """The ids of the whole prompt, and its media with their positions. Raises `BadRequest` like `interleaved`."""
    out: list[int] = []
    media: list[Media] = []
    for part, one in zip(parts, interleaved(parts, mapped, param), strict=True):
        if isinstance(part, str) and isinstance(one, MappedMedia):
            media.append(_medium(part, len(out), one))
        out += one.ids if isinstance(one, MappedMedia) else one
    return out, tuple(media)


def _medium(modality: str, start: int, mapped: MappedMedia) -> Media:
    import numpy as np
    import torch

    tensors = {name: torch.as_tensor(value).detach().cpu().contiguous() for name, value in mapped.tensors.items()}
    positions = None if mapped.positions is None else np.ascontiguousarray(mapped.positions, np.int64)
    rows_at = None if mapped.rows_at is None else np.ascontiguousarray(mapped.rows_at, np.int64)
    return Media(
        modality=modality,
        start=start,
        length=len(mapped.ids),
        digest=digest(modality, tensors, positions, rows_at),
        tensors=tensors,
        positions=positions,
        rows_at=rows_at,
    )


def digest(
    modality: str,
    tensors: Mapping[str, Tensor],
    positions: NDArray[np.int64] | None = None,
    rows_at: NDArray[np.int64] | None = None,
) -> str:
    """A hash of modality, names, dtypes, shapes, bytes and positions, as a hex string."""
    import torch

    hasher = blake2b(digest_size=DIGEST_BYTES)
    hasher.update(b"null" if positions is None else json.dumps(positions.shape).encode() + positions.tobytes())
    hasher.update(b"all" if rows_at is None else json.dumps(rows_at.shape).encode() + rows_at.tobytes())
    for name, tensor in sorted(tensors.items()):
        head = json.dumps([modality, name, str(tensor.dtype), list(tensor.shape)]).encode()
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        hasher.update(len(head).to_bytes(8, "little") + head + len(data).to_bytes(8, "little") + data)
    return hasher.hexdigest()


def split_at_markers(text: str, markers: Iterable[str]) -> list[str]:
    """Split a text into alternating texts and markers, with a text first and last."""
    longest_first = sorted(markers, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


def check_positions(mapped: MappedMedia, modality: str, plugin: str, axes: int) -> None:
    """Raise PluginFailed unless the rotary positions of an item are whole numbers, as many as it has ids."""
    if mapped.positions is None:
        return
    import numpy as np

    positions, shape = np.asarray(mapped.positions), (axes, len(mapped.ids))
    if positions.shape != shape or positions.dtype.kind not in "iu" or positions.min() < 0:
        raise PluginFailed(
            f"Plugin {plugin!r} must place {modality} at whole numbers from 0 on, of shape {list(shape)}; it gave"
            f" {positions.dtype} {list(positions.shape)}."
        )
