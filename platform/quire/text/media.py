"""Media in prompts: each item goes through its plugin's mapper, and its ids take the place of a marker.

    {"prompt": "What is <image>?", "multi_modal_data": {"image": picture}}
      ─▶ ids of "What is ", the ids the mapper gave for the picture, ids of "?" ; Media(start, length, tensors)

A mapper may put words around an item: then these stand in the place of the marker before the text is tokenized.
Items are fetched, then each is decoded (`quire.media`) and mapped before the next, so that of a prompt with many
pictures one at a time is held decoded. It knows no modality.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeAlias

from quire.counting import call_plugin
from quire.errors import BadRequest, PluginError, PluginFailed, QuireError
from quire.media.intake import Intake, numbered
from quire.records import InputMapper, Mapped, MapsAmong, MapsInput, Registry, Worded
from quire.text.model_context import model_context
from quire.text.placed import Part, Piece, media_of, put_together
from quire.text.tokenizer import Tokenizer
from quire.types import Media, ModelInfo

HOOK = "quire_input_mappers"
FIELD = "multi_modal_data"

Encode: TypeAlias = Callable[[str, bool], list[int]]
"""Text, and whether special tokens are added around it, to ids."""


@dataclass(frozen=True)
class _Mapper:
    plugin: str
    marker: str
    built: MapsInput
    numbered: str | None = None


class MediaInputs:
    """The input mappers of one model, each built once. Threads may share it if they may share the mappers."""

    def __init__(
        self, registry: Registry, info: ModelInfo, tokenizer: Tokenizer | None, intake: Intake | None = None
    ) -> None:
        """Raises PluginError when a mapper cannot be built, or two wait for the same marker."""
        self._registry, self._info, self._tokenizer = registry, info, tokenizer
        self.intake = intake or Intake()
        self._mappers: dict[str, _Mapper] = {}
        for record in registry.of(HOOK).values():
            if record.architecture == info.architecture and record.modality in info.modalities:
                self._mappers[record.modality] = self._build(record)
        markers = [mapper.marker for mapper in self._mappers.values()]
        if len(set(markers)) < len(markers):
            raise PluginError(f"Input mappers of {info.architecture} share a marker: {', '.join(sorted(markers))}.")

    def _build(self, record: InputMapper) -> _Mapper:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = model_context(self._registry, plugin, self._info, self._tokenizer)
        try:
            built: MapsInput = call_plugin(self._registry, plugin, record.build, context)
        except PluginFailed as error:
            raise PluginError(f"The input mapper {record.name!r} cannot be built. {error.message}") from error
        return _Mapper(plugin, record.marker or f"<{record.modality}>", built, record.numbered)

    @property
    def markers(self) -> dict[str, str]:
        """By modality, what stands in a prompt where an item goes: nothing for one that all prompts begin with."""
        if self._info.source is not None:
            return dict.fromkeys(self._mappers, "")
        return {modality: mapper.marker for modality, mapper in self._mappers.items()}

    async def fetched(self, data: Any, param: str) -> dict[str, list[Any]]:
        """`data` with all that lies elsewhere fetched, so that `place` need not wait for it.

        Raises as `place` does, and what `Intake.fetched` does.
        """
        return await self.intake.fetched(self._items(data, param), param)

    def place(
        self, text: str | None, ids: list[int] | None, data: Any, encode: Encode, param: str
    ) -> tuple[list[int], tuple[Media, ...]]:
        """Ids of a prompt with its media in place, and where they are. It blocks.

        text, ids: the prompt, at least one of them; ids win. data: {modality: item}, or a list of items each.
        Raises `BadRequest` for a modality the model does not take, too many items, or another number of markers than of
        items (of a model whose prompts begin with a medium, which has no marker: another number than one); what
        fetching and decoding raise; PluginFailed when a mapper fails.
        """
        items = self._items(data, param)
        text = self._unnumbered(text, items, param)
        pieces = self._pieces(text or "", ids, items, encode, param)
        items = self.intake.fetched_now(items, param)
        mapped = {
            modality: [self._take_in(modality, given, number, param) for number in range(len(given))]
            for modality, given in items.items()
        }
        if any(isinstance(one, Worded) for given in mapped.values() for one in given):
            pieces = self._reworded(text if ids is None else None, pieces, mapped, encode)
        if self._info.source is not None:
            pieces.insert(1, self._gap(mapped[self._info.source.modality][0], self._info.source.room))
        return put_together(pieces, mapped, param)

    def _items(self, data: Any, param: str) -> dict[str, list[Any]]:
        """Lists of items by modality; those without any are left out."""
        if not isinstance(data, Mapping):
            raise BadRequest(f"`{FIELD}` must map modalities to items, got {type(data).__name__}.", param)
        for modality in data:
            if modality not in self._mappers:
                takes = " and ".join(self._mappers) or "text only"
                raise BadRequest(
                    f"The model `{self._info.name}` does not take {modality!s:.40}; it takes {takes}.", param
                )
        lists = {name: list(given) if isinstance(given, list) else [given] for name, given in data.items()}
        for name, given in lists.items():
            self.intake.check_count(name, len(given), param)
        return {name: given for name, given in lists.items() if given}

    def _markers_of(self, modalities: Iterable[str]) -> dict[str, str]:
        """The modality by its marker."""
        return {self._mappers[modality].marker: modality for modality in modalities}

    def _pieces(
        self, text: str, ids: list[int] | None, items: Mapping[str, list[Any]], encode: Encode, param: str
    ) -> list[Piece]:
        """The prompt in pieces, one for each item among them."""
        source = self._info.source
        if source is not None:
            if (count := sum(map(len, items.values()))) != 1:
                raise BadRequest(
                    f"The model `{self._info.name}` takes one {source.modality} with each prompt; this one has"
                    f" {count}.",
                    param,
                )
            return [source.modality, encode(text, False) if ids is None else ids]
        markers = self._markers_of(items)
        pieces = self._cut(text, markers, encode) if ids is None else list(self._find(ids, markers))
        for modality, given in items.items():
            count = pieces.count(modality)
            if count != len(given):
                raise self._wrong_count(modality, count, len(given), param)
        for piece in pieces:
            self.check_unmarked([] if isinstance(piece, str) else piece, param, besides=items)
        return pieces

    def check_unmarked(self, ids: Sequence[int], param: str, besides: Collection[str] = ()) -> None:
        """Raise `BadRequest` for the marker of a medium among ids of text, where a marker is a token of its own.

        besides: modalities whose markers were found. A marker of several tokens may be part of a text about it.
        """
        for token, modality in self._marker_tokens.items():
            if modality not in besides and token in ids:
                raise self._wrong_count(modality, ids.count(token), 0, param)

    @cached_property
    def _marker_tokens(self) -> dict[int, str]:
        """The modality by its marker, of markers that are one token."""
        if self._info.source is not None:
            return {}
        found = {modality: self._marker_ids(mapper.marker) for modality, mapper in self._mappers.items()}
        return {ids[0]: modality for modality, ids in found.items() if len(ids) == 1}

    def _wrong_count(self, modality: str, count: int, items: int, param: str) -> BadRequest:
        return BadRequest(
            f"`{param}` has the marker {self._mappers[modality].marker!r} {count} times, but `{FIELD}` has {items}"
            f" items of {modality}; each item needs a marker of its own.",
            param,
        )

    def _unnumbered(self, text: str | None, items: dict[str, list[Any]], param: str) -> str | None:
        """The text with numbered markers as plain ones; `items` come into the order of their numbers."""
        for modality, given in items.items():
            marker, numbered = self._mappers[modality].marker, self._mappers[modality].numbered
            if text is None or numbered is None:
                continue
            pattern = re.escape(numbered).replace(re.escape("{number}"), r"(\d{1,4})")
            numbers = [int(number) for number in re.findall(pattern, text)]
            if numbers and sorted(numbers) != list(range(1, len(given) + 1)):
                raise BadRequest(
                    f"`{param}` has the markers {numbered!r} with the numbers {numbers[:20]}, but `{FIELD}` has"
                    f" {len(given)} items of {modality}; each needs its own, from 1 on.",
                    param,
                )
            if numbers:
                items[modality] = [given[number - 1] for number in numbers]
                text = marker.join(re.split(pattern.replace("(", "(?:"), text))
        return text

    def _gap(self, part: Part, room: int) -> list[int]:
        """Ids for the positions between a source and the text, which nobody computes."""
        (mapped,) = media_of(part)
        return [mapped.ids[-1]] * max(0, room - len(mapped.ids))

    def _cut(self, text: str, by_marker: Mapping[str, str], encode: Encode) -> list[Piece]:
        """Text in pieces. It is tokenized whole where every marker is one token, which nothing can merge with."""
        if all(len(self._marker_ids(marker)) == 1 for marker in by_marker):
            return list(self._find(encode(text, True), by_marker))
        parts = _split(text, by_marker)
        return [
            by_marker[part] if i % 2 else encode(part, i == 0) if part or i == 0 else [] for i, part in enumerate(parts)
        ]

    def _reworded(
        self, text: str | None, pieces: Sequence[Piece], mapped: Mapping[str, Sequence[Part]], encode: Encode
    ) -> list[Piece]:
        """The prompt in pieces again, with the words that mappers put around items; without text, each on its own."""
        words = {modality: iter(given) for modality, given in mapped.items()}
        by_mark = {
            one.mark if isinstance(one, Worded) else self._mappers[modality].marker: modality
            for modality, given in mapped.items()
            for one in given
        }
        if text is not None:
            by_marker = self._markers_of(mapped)
            said = _split(text, by_marker)
            for i in range(1, len(said), 2):
                one = next(words[by_marker[said[i]]], None)
                said[i] = one.text if isinstance(one, Worded) else said[i]
            return self._cut("".join(said), by_mark, encode)
        out: list[Piece] = []
        for piece in pieces:
            one = next(words[piece]) if isinstance(piece, str) else None
            if isinstance(one, Worded):
                out += self._cut(one.text, by_mark, lambda part, _: encode(part, False))
            else:
                out.append(piece)
        return out

    def _find(self, ids: Sequence[int], by_marker: Mapping[str, str]) -> Iterator[Piece]:
        """Ids in pieces, cut where a marker's ids stand in them."""
        markers = {tuple(self._marker_ids(marker)): modality for marker, modality in by_marker.items()}
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        heads = {marker[0] for marker in longest_first}
        begin = 0
        for i, token in enumerate(ids):
            if token not in heads or i < begin:
                continue
            marker = next((m for m in longest_first if tuple(ids[i : i + len(m)]) == m), None)
            if marker is not None:
                yield list(ids[begin:i])
                yield markers[marker]
                begin = i + len(marker)
        yield list(ids[begin:])

    def _marker_ids(self, marker: str) -> list[int]:
        return [] if self._tokenizer is None else self._tokenizer.encode(marker, add_special_tokens=False)

    def _take_in(self, modality: str, items: Sequence[Any], number: int, param: str) -> Part:
        """Item `number`, decoded and mapped."""
        try:
            return self._map(modality, self.intake.decoded(modality, items[number]), len(items))
        except PluginFailed:
            raise
        except QuireError as error:
            raise numbered(error, modality, number, len(items), param) from error

    def _map(self, modality: str, item: Any, count: int) -> Part:
        """What becomes of one of `count` items."""
        mapper, built = self._mappers[modality], self._mappers[modality].built
        call = partial(built.map_among, count=count) if isinstance(built, MapsAmong) else built.map
        part: Part = call_plugin(self._registry, mapper.plugin, call, item)
        if isinstance(part, Worded) and not len(part.media) == part.text.count(part.mark) > 0:
            raise PluginFailed(
                f"Plugin {mapper.plugin!r} must word {modality} with {part.mark!r} once for each of"
                f" {len(part.media)} media."
            )
        for mapped in media_of(part):
            good = isinstance(mapped, Mapped) and len(mapped.ids) > 0
            if not good or not all(0 <= token < self._info.vocab_size for token in mapped.ids):
                raise PluginFailed(
                    f"Plugin {mapper.plugin!r} must map {modality} to at least one id of the vocabulary, and tensors."
                )
            _check_positions(mapped, modality, mapper.plugin, self._info.position_axes)
        return part


def _split(text: str, markers: Iterable[str]) -> list[str]:
    """Text and markers in turn, text first and last."""
    longest_first = sorted(markers, key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, longest_first))})", text)


def _check_positions(mapped: Mapped, modality: str, plugin: str, axes: int) -> None:
    if mapped.positions is None:
        return
    import numpy as np

    given, wanted = np.asarray(mapped.positions), (axes, len(mapped.ids))
    if given.shape != wanted or given.dtype.kind not in "iu" or given.min() < 0:
        raise PluginFailed(
            f"Plugin {plugin!r} must place {modality} at whole numbers from 0 on, of shape {list(wanted)}; it gave"
            f" {given.dtype} {list(given.shape)}."
        )
