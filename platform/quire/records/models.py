"""Model architectures, and the input processors that turn media into token ids and tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from quire.records.context import Context


@dataclass(frozen=True)
class Architecture:
    """A model family. `name` is the entry of `architectures` in config.json.

    decoder: maps the parsed config to a `quire_models.Decoder` or `Encoder`; pure, without files or a device. The
    config has attribute access, and the defaults of transformers' config class if there is one.
    names: a `quire_models.loading.weight_names.WeightsMapper` from checkpoint names to Quire's, or a function of the
    config that returns one.
    tower: maps the config to a part that turns the tensors of input processors into embedding rows, if the model has
    one (`quire_models.towers.tower`).
    pooling: maps the config to the `quire_models.Pooling` of a model with heads of its own (classes, rewards). Without
    it the model embeds, as its folder says, or by its last token (an encoder: the mean of all tokens).
    needs_ops: names of the `OpImpl`s without which its answers would be wrong. If one cannot run, the model does not
    load.
    modality_adapters: maps the config to folders within the model's folder, by modality ("audio"), with adapters that
    prompts with the modality use when a request names none; of several modalities in a prompt, the first counts.
    replaces: name of a plugin whose architecture of the same name it takes the place of; the other architectures of
    that plugin stay. Without it, an architecture of two plugins stops the start.
    """

    name: str
    decoder: Callable[[Any], Any]
    names: Any
    tower: Callable[[Any], Any] | None = None
    pooling: Callable[[Any], Any] | None = None
    needs_ops: tuple[str, ...] = ()
    modality_adapters: Callable[[Any], Mapping[str, str]] | None = None
    replaces: str | None = None


@dataclass(frozen=True)
class ArchitectureQuery:
    """A model that a fallback is asked for.

    names: `architectures` of its config.json. config: the parsed config.json, as `Architecture.decoder` gets it.
    folder: of the model. trust_remote_code: whether code in that folder may run (`--trust-remote-code`).
    """

    names: tuple[str, ...]
    config: Any
    folder: Path
    trust_remote_code: bool


@dataclass(frozen=True)
class ArchitectureFallback:
    """Builds models of architectures that no `Architecture` names, such as with the code of another library.

    It is asked when no plugin has the architecture, or always with `--model-impl <name>`. find: returns the
    architecture, without allocating memory for weights; raises CheckpointError with a sentence that says why it cannot.
    """

    name: str
    find: Callable[[ArchitectureQuery], Architecture]


@dataclass(frozen=True)
class MappedMedia:
    """One media item as token ids and the tensors of the tower.

    positions: rotary positions of the ids, int64 [axes, ids], as in `quire.types.Media`. rows_at: indices of the ids
    that the tower's rows replace, in order; the other ids (line ends, times of frames) keep their own embeddings. None
    = all ids.
    """

    ids: Sequence[int]
    tensors: Mapping[str, Any]
    positions: Any = None
    rows_at: Any = None


@dataclass(frozen=True)
class MappedText:
    """A media item as text with media in it: the text replaces the item's marker before the prompt is tokenized.

    placeholder: occurs in the text once for each of `media`, whose ids replace it; best a token of its own.
    """

    text: str
    placeholder: str
    media: Sequence[MappedMedia]


class InputProcessor(Protocol):
    """Turns one decoded media item into ids and tensors. Called in worker threads, possibly several at once.

    Items of "image" are RGB images of Pillow, of "audio" `quire.media.audio.Audio`, of "video"
    `quire.media.video.Video`; items of other modalities arrive as the prompt has them. An attribute `marker`, if it has
    one, takes the place of `InputMapper.marker`, for markers that the model's folder names. Items of "encoder_prompt",
    of models whose encoder reads the text of the prompt, are its token ids; an attribute `decoder_start` of such a
    processor has the ids that the decoder starts with.
    """

    def map(self, item: Any) -> MappedMedia | MappedText:
        """Ids and tensors: one id for each row that the tower returns. `MappedText` puts text around the ids."""
        ...


@runtime_checkable
class CountAwareInputProcessor(InputProcessor, Protocol):
    """An input processor whose result depends on how many items of its modality the prompt has."""

    def map_with_count(self, item: Any, count: int) -> MappedMedia | MappedText:
        """The result of `map` for one of `count` items. Quire calls it instead of `map`."""
        ...


@runtime_checkable
class ModalityAwareInputProcessor(InputProcessor, Protocol):
    """An input processor whose result depends on which modalities the prompt has."""

    def map_beside(self, item: Any, modalities: Collection[str]) -> MappedMedia | MappedText:
        """The result of `map` in a prompt with items of these modalities. Quire calls it instead of `map`."""
        ...


@runtime_checkable
class PromptInputProcessor(InputProcessor, Protocol):
    """An input processor that makes one medium of a whole prompt, for models whose tokens attend to the whole prompt in
    both directions (prefix language models). Their decoder has `bidirectional_media`. Prompts without media are
    refused.
    """

    def map_prompt(self, parts: Sequence[MappedMedia | Sequence[int]]) -> MappedMedia:
        """The prompt as one medium. parts: the results of `map`, and the ids between them, in order.

        Its tensors must differ between prompts with different ids, because the keys and values of each of its tokens
        depend on all others.
        """
        ...


@dataclass(frozen=True)
class InputMapper:
    """How an architecture accepts one modality ("image", "audio", …).

    architecture: its name; "*" for every architecture that a fallback of the same plugin builds.
    marker: the text in a prompt that an item replaces, `<modality>` by default. numbered_marker: an alternative with
    {number} in it, counted from 1; items then replace the markers with their numbers.
    """

    name: str
    architecture: str
    modality: str
    build: Callable[[Context], InputProcessor]
    marker: str | None = None
    numbered_marker: str | None = None
