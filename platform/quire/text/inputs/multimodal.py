"""Processes media in prompts: an input mapper of a plugin turns each item into ids, which replace its marker.

    {"prompt": "What is <image>?", "multi_modal_data": {"image": picture}}
      ─▶ ids of "What is ", the ids from the mapper, ids of "?" ; Media(start, length, tensors)

A mapper may also return text around an item, which replaces the marker before the text is tokenized. All items are
fetched first; then each is decoded and mapped before the next one, so that only one decoded item is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

from quire.errors import BadRequest, PluginError, PluginFailed, QuireError
from quire.hooks.call_stats import call_plugin
from quire.media.loader import MediaLoader, with_item_number
from quire.records import InputMapper, InputProcessor, MappedMedia, MappedText, PromptInputProcessor, Registry
from quire.text.inputs.context import model_context
from quire.text.inputs.numbered_markers import FIELD, replace_numbered_markers
from quire.text.inputs.prompt_assembly import (
    MappedItem,
    PromptPart,
    assemble,
    check_positions,
    check_source_length,
    encoder_padding,
    interleaved,
    mapped_items,
    mapping,
    split_at_markers,
    text_ids,
)
from quire.text.tokenizer.tokenizer import Tokenizer
from quire.types import Media, ModelInfo
from quire.types.encoder_input import ENCODER_PROMPT

HOOK = "quire_input_mappers"

Encode: TypeAlias = Callable[[str, bool], list[int]]
"""(text, whether to add special tokens) → ids."""


@dataclass(frozen=True)
class _Mapper:
    plugin: str
    marker: str
    built: InputProcessor
    numbered: str | None = None


class MultimodalProcessor:
    """Applies the input mappers of one model, each built once. Thread-safe if the mappers are.

    Raises PluginError if a mapper cannot be built or two mappers have the same marker.
    """

    def __init__(
        self, registry: Registry, info: ModelInfo, tokenizer: Tokenizer | None, loader: MediaLoader | None = None
    ) -> None:
        self._registry, self._info, self._tokenizer = registry, info, tokenizer
        self.loader = loader or MediaLoader()
        self._mappers: dict[str, _Mapper] = {}
        for record in registry.input_mappers(info.architecture, info.fallback):
            if record.modality in info.modalities:
                self._mappers[record.modality] = self._build(record)
        if len(set(markers := [mapper.marker for mapper in self._mappers.values()])) < len(markers):
            raise PluginError(f"Input mappers of {info.architecture} share a marker: {', '.join(sorted(markers))}.")

    def _build(self, record: InputMapper) -> _Mapper:
        plugin = self._registry.plugin_of(HOOK, record.name)
        context = model_context(self._registry, plugin, self._info, self._tokenizer)
        try:
            built: InputProcessor = call_plugin(self._registry, plugin, record.build, context)
        except PluginFailed as error:
            raise PluginError(f"The input mapper {record.name!r} cannot be built. {error.message}") from error
        marker = getattr(built, "marker", None) or record.marker or f"<{record.modality}>"
        return _Mapper(plugin, marker, built, record.numbered_marker)

    @property
    def encodes_text(self) -> bool:
        """Whether the text of a prompt is what the encoder reads."""
        return ENCODER_PROMPT in self._mappers

    def process_encoder_prompt(self, ids: Sequence[int], param: str) -> tuple[list[int], tuple[Media, ...]]:
        """The prompt whose encoder reads `ids` and whose decoder starts as the mapper says. Raises `BadRequest`."""
        source, built = self._info.encoder_input, self._mappers[ENCODER_PROMPT].built
        assert source is not None, "the caller asks `encodes_text`"
        check_source_length(len(ids), source, self._info.name, param)
        mapped, start = self._map(ENCODER_PROMPT, ids, 1), list(getattr(built, "decoder_start", ()))
        return assemble([ENCODER_PROMPT, encoder_padding(mapped, source), start], {ENCODER_PROMPT: [mapped]}, param)

    @property
    def markers(self) -> dict[str, str]:
        """The marker of each modality in a prompt; "" for an encoder input, which all prompts begin with."""
        if self._info.encoder_input is not None:
            return dict.fromkeys(self._mappers, "")
        return {modality: mapper.marker for modality, mapper in self._mappers.items()}

    async def fetch(self, data: Any, param: str) -> dict[str, list[Any]]:
        """`data` with all URLs and files fetched, so that `process` does not wait for them.

        Raises the errors of `process` for invalid data, and those of `MediaLoader.fetch`.
        """
        return await self.loader.fetch(self._items(data, param), param)

    def process(
        self, text: str | None, ids: list[int] | None, data: Any, encode: Encode, param: str
    ) -> tuple[list[int], tuple[Media, ...]]:
        """The ids of a prompt including its media, and the media with their positions. Blocks.

        text, ids: the prompt, at least one of them; ids take precedence. data: {modality: item or list of items}.
        Raises `BadRequest` for a modality that the model does not take, for too many items, and if the numbers of
        markers and items differ (an encoder input has no marker: exactly one item is required); the errors of fetching
        and decoding; PluginFailed when a mapper fails.
        """
        items = self._items(data, param)
        numbered = {modality: (one.marker, one.numbered) for modality, one in self._mappers.items() if one.numbered}
        text = replace_numbered_markers(text, items, numbered, param)
        if self.encodes_text:
            items = {key: [text_ids(one, encode) for one in some] for key, some in items.items()}
        parts = self._split_prompt(text or "", ids, items, encode, param)
        items = self.loader.fetch_sync(items, param)
        mapped = {
            modality: [self._decode_and_map(modality, items, number, param) for number in range(len(given))]
            for modality, given in items.items()
        }
        if any(isinstance(one, MappedText) for given in mapped.values() for one in given):
            parts = self._expand_text(text if ids is None else None, parts, mapped, encode)
        if (source := self._info.encoder_input) is not None:
            parts.insert(1, encoder_padding(mapped[source.modality][0], source))
        for modality, mapper in self._mappers.items():
            if modality in mapped and isinstance(built := mapper.built, PromptInputProcessor):
                whole = call_plugin(self._registry, mapper.plugin, built.map_prompt, interleaved(parts, mapped, param))
                return assemble([modality], {modality: [whole]}, param)
        return assemble(parts, mapped, param)

    def _items(self, data: Any, param: str) -> dict[str, list[Any]]:
        if not isinstance(data, Mapping):
            raise BadRequest(f"`{FIELD}` must map modalities to items, got {type(data).__name__}.", param)
        for modality in data:
            if modality not in self._mappers:
                accepted = " and ".join(self._mappers) or "text only"
                raise BadRequest(
                    f"The model `{self._info.name}` does not take {modality!s:.40}; it takes {accepted}.", param
                )
        lists = {name: list(given) if isinstance(given, list) else [given] for name, given in data.items()}
        for name, given in lists.items():
            self.loader.check_count(name, len(given), param)
        return {name: given for name, given in lists.items() if given}

    def _modality_by_marker(self, modalities: Iterable[str]) -> dict[str, str]:
        return {self._mappers[modality].marker: modality for modality in modalities}

    def _split_prompt(
        self, text: str, ids: list[int] | None, items: Mapping[str, list[Any]], encode: Encode, param: str
    ) -> list[PromptPart]:
        source = self._info.encoder_input
        if source is not None:
            if (count := sum(map(len, items.values()))) != 1:
                raise BadRequest(
                    f"The model `{self._info.name}` takes one {source.modality} with each prompt; this one has"
                    f" {count}.",
                    param,
                )
            return [source.modality, encode(text, False) if ids is None else ids]
        markers = self._modality_by_marker(items)
        parts = self._split_text(text, markers, encode) if ids is None else list(self._split_ids(ids, markers))
        for modality, given in items.items():
            count = parts.count(modality)
            if count != len(given):
                raise self._wrong_count(modality, count, len(given), param)
        for part in parts:
            self.reject_markers([] if isinstance(part, str) else part, param, besides=items)
        return parts

    def reject_markers(self, ids: Sequence[int], param: str, besides: Collection[str] = ()) -> None:
        """Raise `BadRequest` if the ids contain a marker that is a single token but has no item.

        besides: modalities whose markers were matched already. A marker of several tokens may be ordinary text. Models
        whose media take the whole prompt into them need an item with each prompt.
        """
        for modality, mapper in self._mappers.items():
            if not besides and isinstance(mapper.built, PromptInputProcessor):
                raise BadRequest(
                    f"The model `{self._info.name}` takes {modality} with each prompt; it has none.", param
                )
        for token, modality in self._modality_by_marker_token.items():
            if modality not in besides and token in ids:
                raise self._wrong_count(modality, ids.count(token), 0, param)

    @cached_property
    def _modality_by_marker_token(self) -> dict[int, str]:
        """Token id → modality, for the markers that are a single token."""
        if self._info.encoder_input is not None:
            return {}
        found = {modality: self._marker_ids(mapper.marker) for modality, mapper in self._mappers.items()}
        return {ids[0]: modality for modality, ids in found.items() if len(ids) == 1}

    def _wrong_count(self, modality: str, count: int, items: int, param: str) -> BadRequest:
        return BadRequest(
            f"`{param}` has the marker {self._mappers[modality].marker!r} {count} times, but `{FIELD}` has {items}"
            f" items of {modality}; each item needs a marker of its own.",
            param,
        )

    def _split_text(self, text: str, by_marker: Mapping[str, str], encode: Encode) -> list[PromptPart]:
        """Split a text at its markers. If every marker is a single token, the text is tokenized as a whole."""
        if all(len(self._marker_ids(marker)) == 1 for marker in by_marker):
            return list(self._split_ids(encode(text, True), by_marker))
        parts = split_at_markers(text, by_marker)
        return [
            by_marker[part] if i % 2 else encode(part, i == 0) if part or i == 0 else [] for i, part in enumerate(parts)
        ]

    def _expand_text(
        self, text: str | None, parts: Sequence[PromptPart], mapped: Mapping[str, Sequence[MappedItem]], encode: Encode
    ) -> list[PromptPart]:
        """Replace markers by the texts of `MappedText` items, and split the prompt again.

        Without the text of the prompt, each replacement text is tokenized alone.
        """
        remaining = {modality: iter(given) for modality, given in mapped.items()}
        by_placeholder = {
            one.placeholder if isinstance(one, MappedText) else self._mappers[modality].marker: modality
            for modality, given in mapped.items()
            for one in given
        }
        if text is not None:
            by_marker = self._modality_by_marker(mapped)
            split = split_at_markers(text, by_marker)
            for i in range(1, len(split), 2):
                one = next(remaining[by_marker[split[i]]], None)
                split[i] = one.text if isinstance(one, MappedText) else split[i]
            return self._split_text("".join(split), by_placeholder, encode)
        out: list[PromptPart] = []
        for part in parts:
            one = next(remaining[part]) if isinstance(part, str) else None
            if isinstance(one, MappedText):
                out += self._split_text(one.text, by_placeholder, lambda text, _: encode(text, False))
            else:
                out.append(part)
        return out

    def _split_ids(self, ids: Sequence[int], by_marker: Mapping[str, str]) -> Iterator[PromptPart]:
        """Split ids where they contain the ids of a marker."""
        markers = {tuple(self._marker_ids(marker)): modality for marker, modality in by_marker.items()}
        longest_first = sorted(filter(None, markers), key=len, reverse=True)
        first_ids = {marker[0] for marker in longest_first}
        begin = 0
        for i, token in enumerate(ids):
            if token not in first_ids or i < begin:
                continue
            marker = next((m for m in longest_first if tuple(ids[i : i + len(m)]) == m), None)
            if marker is not None:
                yield list(ids[begin:i])
                yield markers[marker]
                begin = i + len(marker)
        yield list(ids[begin:])

    def _marker_ids(self, marker: str) -> list[int]:
        return [] if self._tokenizer is None else self._tokenizer.encode(marker, add_special_tokens=False)

    def _decode_and_map(self, modality: str, all_items: Mapping[str, list[Any]], number: int, param: str) -> MappedItem:
        """Decode and map one item of a prompt. Errors name its number."""
        items = all_items[modality]
        try:
            return self._map(modality, self.loader.decode(modality, items[number]), len(items), all_items)
        except PluginFailed:
            raise
        except QuireError as error:
            raise with_item_number(error, modality, number, len(items), param) from error

    def _map(self, modality: str, item: Any, count: int, beside: Collection[str] = ()) -> MappedItem:
        """Map one of `count` items, and validate what the mapper returns."""
        mapper, call = self._mappers[modality], mapping(self._mappers[modality].built, count, beside)
        result: MappedItem = call_plugin(self._registry, mapper.plugin, call, item)
        if isinstance(result, MappedText) and not len(result.media) == result.text.count(result.placeholder) > 0:
            raise PluginFailed(
                f"Plugin {mapper.plugin!r} must word {modality} with {result.placeholder!r} once for each of"
                f" {len(result.media)} media."
            )
        for mapped in mapped_items(result):
            is_valid = isinstance(mapped, MappedMedia) and len(mapped.ids) > 0
            if not is_valid or not all(0 <= token < self._info.vocab_size for token in mapped.ids):
                raise PluginFailed(
                    f"Plugin {mapper.plugin!r} must map {modality} to at least one id of the vocabulary, and tensors."
                )
            check_positions(mapped, modality, mapper.plugin, self._info.position_axes)
        return result
