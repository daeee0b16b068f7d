"""Model architectures, and how they take in media."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from quire.records.context import Context


@dataclass(frozen=True)
class Architecture:
    """A model family. `name` is what `architectures` in config.json says.

    decoder: maps the parsed config (attribute access, defaults filled in by transformers' config
    class when it has one) to a `quire_models.Decoder` or `Encoder`: pure, no files, no device.
    names: a `quire_models.names` table from checkpoint names to ours, or a function of the config that gives one.
    tower: maps the config to a part that turns mappers' tensors into embedding rows, if any (`quire_models.tower`).
    pooling: maps the config to the `quire_models.Pooling` of a model with heads of its own (classes, rewards); without
    it the model embeds, as its folder says or from its last token (an encoder: the mean of all).
    needs_ops: names of the `OpImpl`s without which its answers are wrong: where one cannot be used, it does not load.
    """

    name: str
    decoder: Callable[[Any], Any]
    names: Any
    tower: Callable[[Any], Any] | None = None
    pooling: Callable[[Any], Any] | None = None
    needs_ops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mapped:
    """A medium as ids, its tower's tensors, and where the ids stand: int64 [axes, ids], see `quire.types.Media`."""

    ids: Sequence[int]
    tensors: Mapping[str, Any]
    positions: Any = None


@dataclass(frozen=True)
class Worded:
    """An item in words of its own: the text takes the place of its marker before the prompt is tokenized.

    mark: stands in the text once for each of `media`, whose ids take its place; best a token of its own.
    """

    text: str
    mark: str
    media: Sequence[Mapped]


class MapsInput(Protocol):
    """Turns one decoded media item into ids and tensors; called in worker threads, perhaps in several at once.

    Items of "image" are RGB pictures of Pillow, of "audio" `quire.media.audio.Audio`, of "video"
    `quire.media.video.Video`; of other modalities, what the prompt has.
    """

    def map(self, item: Any) -> Mapped | Worded:
        """As many embedding ids as the tower will return rows for these tensors; with text around them, if need be."""
        ...


@runtime_checkable
class MapsAmong(MapsInput, Protocol):
    """A mapper to which it matters how many items of its modality a prompt has."""

    def map_among(self, item: Any, count: int) -> Mapped | Worded:
        """What `map` gives, for one of `count` items; it is called in place of `map`."""
        ...


@dataclass(frozen=True)
class InputMapper:
    """How an architecture takes in a modality ("image", "audio", …).

    marker: what stands in a prompt where an item goes, `<modality>` unless given. numbered: another way to write it,
    with {number} where the number of the item stands, counted from 1; items go where their numbers are.
    """

    name: str
    architecture: str
    modality: str
    build: Callable[[Context], MapsInput]
    marker: str | None = None
    numbered: str | None = None
