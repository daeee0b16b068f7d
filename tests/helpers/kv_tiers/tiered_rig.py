"""Engines whose pages are kept beside the device, and what they found there."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

from engine_rig import Answer, Rig, greedy, random_ids, rig_of

kept = partial(rig_of, max_num_batched_tokens=96)
PROMPT = random_ids(random.Random(1), 90)
NUM_PAGES = 22
"""Pages of four tokens that are found of the prompt, whose last token is always computed."""


def asked(rig: Rig, prompt: list[int] = PROMPT, **request: Any) -> Answer:
    """The answer to a prompt, after all pages are written."""
    assert rig.engine._tiers.flush(60)
    request_id = rig.add(prompt, greedy(12, ignore_eos=True), **request)
    answer = rig.drain()[request_id, 0]
    assert rig.engine._tiers.flush(60)
    return answer


def cached(answer: Answer) -> int:
    return answer.deltas[0].num_cached_tokens or 0


def tier(rig: Rig, name: str) -> Any:
    stats = rig.engine.stats().kv_tiers
    assert stats is not None
    return next(each for each in stats.tiers if each.name == name)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("??/*"))
