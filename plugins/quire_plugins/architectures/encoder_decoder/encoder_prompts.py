"""The input mapper of encoder-decoders for text. This module is not a plugin."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from quire.errors import CheckpointError
from quire.records import Context, MappedMedia
from quire_models.loading.json_files import read_object


class EncoderPromptProcessor:
    """The ids of a text as the input of the encoder. decoder_start: ids that the decoder starts with."""

    def __init__(self, context: Context) -> None:
        """Raises CheckpointError for a folder that names no `decoder_start_token_id`."""
        own = read_object(Path(str(context.folder)), "generation_config.json") or {}
        fields = (own, context.config)
        start = _first(fields, "decoder_start_token_id")
        if start is None:
            raise CheckpointError(
                f"{context.folder}: neither generation_config.json nor config.json has `decoder_start_token_id`."
            )
        forced = _first(fields, "forced_bos_token_id")
        self.decoder_start = [start] if forced is None else [start, forced]

    def map(self, item: Sequence[int]) -> MappedMedia:
        """Maps the ids of a text to themselves: the encoder returns a row for each."""
        return MappedMedia(ids=list(item), tensors={"ids": np.asarray(item, np.int64)})


def _first(places: Sequence[object], field: str) -> int | None:
    """The first integer that one of the mappings has for a field."""
    found = (place.get(field) for place in places if isinstance(place, dict))
    return next((value for value in found if isinstance(value, int)), None)
