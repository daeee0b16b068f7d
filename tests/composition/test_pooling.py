"""Pooling with everything else: what a prompt is pooled to depends on nothing but itself, its pictures and adapters.

Every task, on a prompt with or without pictures, adapters, both, in every way of running and any two of them, beside
texts that are being written; and those texts do not notice.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from composition.features import SETTINGS, Setting
from engine_rig import Rig, greedy, make_rig, random_ids
from lora_rig import Base
from plugin_site import PluginSite
from thread_ranks import launch_thread
from vision_model import PLACE, PLUGIN, tiny_seeing_model

from quire.hooks import registry
from quire.params.pooling import PoolingParams
from quire.types import AdapterRef, Media, Prompt, WeightedAdapter

TASKS = ("embed", "token_embed")
POOLINGS = ("last", "mean")
TEXT = tuple(b"The quick brown fox jumps over")
PLAIN = Setting("plain", {"enable_prefix_caching": False, "max_num_batched_tokens": 64, "max_num_seqs": 8})


def picture(seed: int, start: int) -> Media:
    patches = torch.rand(4, 3, generator=torch.Generator().manual_seed(seed))
    return Media(modality="image", start=start, length=4, digest=f"picture {seed}", tensors={"patches": patches})


def prompts() -> dict[str, Prompt]:
    places = (PLACE,) * 4
    seen = Prompt(token_ids=TEXT[:9] + places + TEXT[9:] + places, media=(picture(1, 9), picture(2, len(TEXT) + 4)))
    return {"text": Prompt(token_ids=TEXT), "pictures": seen}


WHAT = [(kind, names) for kind in ("text", "pictures") for names in ((), ("one",), ("one", "two"))]


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Engines on a model that sees, with two adapters, by their settings; made when first needed."""
    root = tmp_path_factory.mktemp("pooling")
    folder = tiny_seeing_model(root / "seeing")
    base = Base(root / "llama", "LlamaForCausalLM")
    adapters = {name: base.adapter(name, r=4, target_modules="all-linear") for name in ("one", "two")}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "site")
        (root / "site").mkdir()
        PluginSite(root / "site").add("colours", PLUGIN)
        found = registry.load(["llama", "policies", "colours"], enable_lora=True)
    made: list[Rig] = []

    @cache
    def rig(settings: str) -> Rig:
        made.append(make_rig(folder, found, launch_thread, **json.loads(settings)))
        for name, path in adapters.items():
            made[-1].engine.load_adapter(name, Path(path))
        return made[-1]

    yield lambda settings: rig(json.dumps(dict(settings), sort_keys=True))
    for each in made:
        each.engine.close()


def ask(rig: Rig, ways: tuple[Setting, ...]) -> tuple[list[torch.Tensor], list[list[int]]]:
    """What every prompt is pooled to, for every task; and the texts that were written meanwhile."""
    rng = random.Random(9)
    kinds = prompts()

    def add() -> list[str]:
        return [
            rig.add(
                kinds[kind],
                PoolingParams(task=task),
                adapters=tuple(WeightedAdapter(AdapterRef(name=n)) for n in names),
            )
            for kind, names in WHAT
            for task in TASKS
        ]

    if any(way.warm for way in ways):
        add()
        rig.drain()
    talk = [rig.add(random_ids(rng, 12), greedy(8, ignore_eos=True)) for _ in range(4)]
    company = max((way.company for way in ways), default=0)
    for _ in range(company):
        rig.add(random_ids(rng, rng.randrange(4, 30)), greedy(20, ignore_eos=True))
    ids = add()
    answers = rig.drain()
    found = []
    for request_id in ids:
        last = answers[request_id, 0].last
        assert last.error is None
        assert last.pooled is not None
        found.append(torch.from_numpy(last.pooled.numbers().copy()))
    return found, [answers[request_id, 0].token_ids for request_id in talk]


def settings_of(ways: tuple[Setting, ...], pooling: str) -> dict[str, Any] | None:
    merged: dict[str, Any] = {"pooling": pooling}
    for way in ways:
        for name, value in way.settings.items():
            if merged.get(name, value) != value:
                return None
            merged[name] = value
    return merged


WAYS = [
    ways
    for ways in [*((way,) for way in SETTINGS), *combinations(SETTINGS, 2)]
    if settings_of(ways, "last") is not None
]


# one way alone with every pooling; every other pair of ways with one of them in turn
ASKED = [
    pytest.param(ways, pooling, id=f"{' x '.join(way.name for way in ways)}-{pooling}")
    for number, ways in enumerate(WAYS)
    for pooling in (POOLINGS if len(ways) == 1 else [POOLINGS[number // 2 % 2]] if number % 2 else [])
]


@pytest.fixture(scope="module")
def plain(rigs: Any) -> dict[str, tuple[list[torch.Tensor], list[list[int]]]]:
    """What the plainest engine gives, by pooling."""
    return {pooling: ask(rigs(settings_of((PLAIN,), pooling)), ()) for pooling in POOLINGS}


@pytest.mark.parametrize(("ways", "pooling"), ASKED)
def test_pooling_gives_the_same_in_every_way_of_running(
    rigs: Any,
    plain: dict[str, tuple[list[torch.Tensor], list[list[int]]]],
    ways: tuple[Setting, ...],
    pooling: str,
) -> None:
    settings = settings_of(ways, pooling)
    assert settings is not None
    wanted, spoken = plain[pooling]
    found, said = ask(rigs(settings), ways)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        assert (a - b).abs().max() <= 1e-5
    assert said == spoken


def test_pictures_and_adapters_each_make_a_difference(rigs: Any) -> None:
    found, _ = ask(rigs(settings_of((PLAIN,), "mean")), ())
    for a, b in combinations(found[::2], 2):
        assert (a - b).abs().max() > 1e-2
