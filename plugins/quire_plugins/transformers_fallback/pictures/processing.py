"""The processor of a model folder: from one picture to placeholder ids, tensors and rotary positions."""

from __future__ import annotations

from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quire.errors import CheckpointError
from quire.records import ArchitectureQuery, Context, MappedMedia
from quire_models.loading.json_files import read_object
from quire_plugins.transformers_fallback.model_class import find_class
from quire_plugins.transformers_fallback.tracing import body_of, build_on_meta
from quire_plugins.vision.image_processing import check_shape

OF_TEXT = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "position_ids"})
"""Outputs of processors that are not the model's input for a picture."""

SAMPLE = (64, 48)
"""Width and height of a picture on which a processor and a model are tried."""


class PictureProcessor:
    """Maps one picture at a time, as transformers' processor does in a prompt. marker: stands for a picture."""

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError with a reason if the processor cannot be used."""
        self._processor = _processor(str(context.folder))
        self._id = placeholder_id(context.config)
        self.marker = self._marker()
        query = ArchitectureQuery(tuple(context.config["architectures"]), None, Path(str(context.folder)), False)
        body = body_of(build_on_meta(find_class(query), torch.bfloat16))
        self._positions = getattr(body, "get_rope_index", None)

    def map(self, item: Any) -> MappedMedia:
        """Ids, tensors and positions of a Pillow image. Raises BadRequest for one that is too narrow."""
        check_shape(item)
        made = self._made(self.marker, item)
        ids = made["input_ids"]
        rows_at = (ids[0] == self._id).nonzero()[:, 0]
        tensors = {name: value for name, value in made.items() if name not in OF_TEXT}
        return MappedMedia(
            ids[0].tolist(), tensors, positions=self._positions_of(ids, tensors), rows_at=rows_at.numpy()
        )

    def _made(self, marker: str, picture: Any) -> dict[str, Any]:
        return dict(self._processor(text=[marker], images=[picture], return_tensors="pt", add_special_tokens=False))

    def _marker(self) -> str:
        """The text that the processor replaces by placeholders."""
        tokenizer = self._processor.tokenizer
        named = (getattr(self._processor, name, None) for name in ("image_token", "boi_token"))
        found = (*named, tokenizer.convert_ids_to_tokens(self._id))
        reasons = []
        for marker in dict.fromkeys(str(each) for each in found if each):
            try:
                made = self._made(marker, sample())
                ids = made["input_ids"][0].tolist()
            except Exception as error:  # transformers raises many types
                reasons.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
                continue
            if self._id in ids and tokenizer.bos_token_id not in ids and _all_tensors(made):
                return marker
            reasons.append(f"{marker!r} becomes no run of the placeholder {self._id}, or more than that")
        raise CheckpointError(
            "transformers' processor does not make ids and tensors of one picture in a prompt "
            f"({'; '.join(reasons) or 'no token stands for one'})"
        )

    def _positions_of(self, ids: Tensor, tensors: dict[str, Any]) -> Any:
        """int64 [axes, ids] by the model's own rule; None where positions are consecutive."""
        if self._positions is None:
            return None
        given = {"input_ids": ids, "mm_token_type_ids": (ids == self._id).int(), **tensors}
        takes = signature(self._positions).parameters
        positions, _ = self._positions(**{name: value for name, value in given.items() if name in takes})
        return positions[:, 0].long().numpy()


def sample() -> Any:
    """A picture with one color in each half."""
    from PIL import Image

    width, height = SAMPLE
    picture = Image.new("RGB", SAMPLE, (200, 40, 90))
    picture.paste((10, 120, 230), (0, 0, width // 2, height))
    return picture


def placeholder_id(config: Any) -> int:
    """The id that stands for one row of a picture, by config.json. Raises CheckpointError."""
    for name in ("image_token_id", "image_token_index"):
        found = config.get(name)
        if isinstance(found, int):
            return found
    raise CheckpointError("config.json names no id that stands for a picture (image_token_id)")


def _all_tensors(made: dict[str, Any]) -> bool:
    return all(isinstance(value, Tensor) for value in made.values())


def _processor(folder: str) -> Any:
    """transformers' processor. Its part for videos is left out if it needs packages that are not installed."""
    from transformers import AutoProcessor

    try:
        found = AutoProcessor.from_pretrained(folder, backend="pil", local_files_only=True)
    except Exception as error:  # transformers raises many types for unusable files
        found = _without_videos(folder)
        if found is None:
            raise CheckpointError(
                f"transformers cannot load its processor: {' '.join(str(error).split())[:200]}"
            ) from error
    if not hasattr(found, "image_processor") or not hasattr(found, "tokenizer"):
        raise CheckpointError("transformers has no processor of texts and pictures for it")
    return found


def _without_videos(folder: str) -> Any:
    """The processor by the type of the model, with an image processor and a tokenizer only; None if it needs more."""
    import transformers
    from transformers import AutoImageProcessor, AutoTokenizer
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    settings = read_object(Path(folder), "processor_config.json") or {}
    kind = (read_object(Path(folder), "config.json") or {}).get("model_type")
    cls: Any = getattr(
        transformers, str(settings.get("processor_class") or PROCESSOR_MAPPING_NAMES.get(str(kind))), None
    )
    if cls is None:
        return None

    # without the check that each of its parts is there
    lenient = {"check_argument_for_proper_class": lambda self, name, argument: type(argument)}
    pictures = type(cls.__name__, (cls,), lenient)
    known = {name: value for name, value in settings.items() if name in signature(cls.__init__).parameters}
    given = {name: value for name, value in known.items() if not isinstance(value, dict)}
    try:
        return pictures(
            image_processor=AutoImageProcessor.from_pretrained(folder, backend="pil", local_files_only=True),
            tokenizer=AutoTokenizer.from_pretrained(folder, local_files_only=True),
            **given,
        )
    except Exception:  # of transformers
        return None
