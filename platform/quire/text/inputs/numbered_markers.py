"""Numbered markers of media in a prompt (`<|image_1|>`), which say which item replaces each of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from quire.errors import BadRequest

FIELD = "multi_modal_data"


def replace_numbered_markers(
    text: str | None, items: dict[str, list[Any]], markers: Mapping[str, tuple[str, str]], param: str
) -> str | None:
    """Replace numbered markers by plain ones. Sorts `items` in place into the order of their numbers.

    markers: the plain and the numbered marker by modality. Raises `BadRequest` unless each item has a number of its
    own, from 1 on.
    """
    for modality, (marker, numbered) in markers.items():
        given = items.get(modality)
        if text is None or given is None:
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
