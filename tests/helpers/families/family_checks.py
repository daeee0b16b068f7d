"""The checks of a family: logits, tokens and adapters of a tiny random model are those of transformers and peft.

Greedy tokens are checked in one pass: they are those of transformers if each is the most likely one after the tokens
before it.
"""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from engine_rig import Answer, Rig, greedy, random_ids, rig_of
from family_case import FamilyCase
from lora_rig import Ours, randomize_adapter
from parity_model import total_preemptions
from torch import Tensor

from quire.engine.memory.dummy_batch import run_first_step
from quire.hooks import registry
from quire.records import Registry
from quire.types import AdapterRef, WeightedAdapter
from quire_testing.tiny import byte_tokenizer, reference_model, save

TOLERANCE = 1e-4
NEW_TOKENS = 12
TIGHT = 7
"""Pages of 16 tokens, for fewer seqs than there are, so that some are preempted."""


def check_family(case: FamilyCase, root: Path) -> None:
    """Everything that holds for a family, with four engines. Raises AssertionError."""
    family = Family(case, root)
    check_logits(family)
    for name, settings in case.variants.items():
        _check_variant(case, root / "variant", name, settings)
    _check_tokens(family)


@dataclass
class Variant:
    """A model with other settings of its config."""

    folder: Path


class Family:
    """A tiny random model on disk, an adapter for it, and both in transformers and peft."""

    def __init__(self, case: FamilyCase, root: Path) -> None:
        self.case, self.folder, self.adapter = case, root / "model", root / "adapter"
        self.base = reference(case, {})
        save(self.base, self.folder)
        byte_tokenizer(self.folder)
        self.adapted = self._with_adapter() if case.lora else None

    def _with_adapter(self) -> Any:
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=4, lora_alpha=8, target_modules=list(self.case.lora), **self.case.lora_options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            adapted = get_peft_model(copy.deepcopy(self.base), config)
            randomize_adapter(adapted, like=0.7)
            adapted.save_pretrained(self.adapter)
        return adapted.eval()

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int], adapted: bool = False) -> Tensor:
        """[tokens, vocab] by transformers."""
        model = self.adapted if adapted else self.base
        found: Tensor = model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return found


@cache
def plugins() -> Registry:
    """All bundled plugins and the runtimes of adapters."""
    return registry.load(None, enable_lora=True)


def reference(case: FamilyCase, settings: Mapping[str, Any]) -> Any:
    model = reference_model(case.architecture, case.seed, case.attention, **{**case.config, **settings})
    if model.config.get_text_config().tie_word_embeddings:
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(case.scale)
    return model


# --- logits ---------------------------------------------------------------------------------------------


def check_logits(family: Family) -> None:
    """One batch of the base and the adapter, whole and in chunks."""
    ours = Ours(family, found=plugins(), **_config(family.case))
    seqs = _seqs(41, 23, 1, 30)
    uses: list[Mapping[Any, float]] = [{}] * len(seqs)
    adapted = [family.adapted is not None and i % 2 == 1 for i in range(len(seqs))]
    if family.adapted is not None:
        adapter = ours.lora.load("adapter", family.adapter)
        uses = [{adapter: 1.0} if yes else {} for yes in adapted]
    wanted = [family.logits(seq, yes) for seq, yes in zip(seqs, adapted, strict=True)]
    for chunk in (1000, 7):
        found = ours.logits(seqs, uses, chunk)
        _close(found, wanted, f"{family.case}, chunks of {chunk}")
    if family.adapted is not None:
        change = (wanted[1] - family.logits(seqs[1])).abs().max()
        assert change > 100 * TOLERANCE, f"{family.case}: the adapter changes logits by {change:.1g} only"


def _check_variant(case: FamilyCase, folder: Path, name: str, settings: Mapping[str, Any]) -> None:
    folder = folder / name.replace(" ", "_")
    theirs = reference(case, settings)
    save(theirs, folder)
    byte_tokenizer(folder)
    ours = Ours(Variant(folder), found=plugins(), **_config(case))
    seqs = _seqs(41, 9)
    with torch.inference_mode():
        wanted = [theirs(torch.tensor([seq]), use_cache=False).logits[0] for seq in seqs]
    _close(ours.logits(seqs, [{}, {}], chunk=7), wanted, f"{case} with {name}")


def _close(found: Sequence[Tensor], wanted: Sequence[Tensor], what: str) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.dtype == torch.float32
        worst = (mine - theirs).abs().max().item()
        assert worst <= TOLERANCE, f"{what}: logits of {len(mine)} tokens differ by up to {worst:.2g}"


def _seqs(*lengths: int) -> list[list[int]]:
    rng = random.Random(3)
    return [random_ids(rng, length) for length in lengths]


def _config(case: FamilyCase) -> dict[str, Any]:
    """Settings of an engine; its length is for configs without one, and one seq fits into the smallest pool."""
    return {"max_model_len": 80, **case.settings}


# --- tokens ---------------------------------------------------------------------------------------------


def _check_tokens(family: Family) -> None:
    """Greedy tokens of engines with chunks of 7, 33 and 1 tokens, with room, with recomputed and swapped seqs."""
    prompts = _seqs(30, 28, 25, 33)
    with _engine(family, max_num_batched_tokens=7) as rig:
        run_first_step(rig.engine.loaded, page_size=16)  # as after a load, which changes nothing
        found = _answers(rig, prompts)
        _check_greedy(family, prompts, found, False)
        kinds = len({token for tokens in found for token in tokens})
        assert kinds > 12, f"{family.case} says only {kinds} different tokens, which would hide mistakes"
        if family.adapted is not None:
            _check_adapted_tokens(rig, family, prompts, found)
        _check_prefix_hits(rig, family, prompts[0])
        pickle.loads(pickle.dumps(rig.engine.loaded.names))  # as processes that compile grammars receive it
    with _engine(family, max_num_batched_tokens=1) as rig:
        assert _answers(rig, prompts[2:3]) == found[2:3], f"{family.case}: tokens change in chunks of 1"
    tight = {"num_pages": TIGHT, "enable_prefix_caching": False, "max_num_batched_tokens": 33}
    for way, swap in ("recompute", 0.0), ("swap", 0.01):
        with _engine(family, **tight, preemption=way, swap_space=swap) as rig:
            assert _answers(rig, prompts) == found, f"{family.case}: tokens change in chunks of 33, by {way}"
            assert total_preemptions(rig)[way == "swap"] > 0, f"{family.case}: no seq was preempted by {way}"


def _engine(family: Family, **settings: Any) -> Any:
    return rig_of(family.folder, plugins(), **{**_config(family.case), **settings})


def _answers(rig: Rig, prompts: Sequence[Sequence[int]], adapted: Sequence[bool] = ()) -> list[list[int]]:
    """Tokens of each prompt, all in one batch. adapted: which of them use the adapter, if any does."""
    return [answer.token_ids for answer in _all_answers(rig, prompts, adapted)]


def _all_answers(rig: Rig, prompts: Sequence[Sequence[int]], adapted: Sequence[bool]) -> list[Answer]:
    use = (WeightedAdapter(AdapterRef(name="adapter")),)
    params = greedy(NEW_TOKENS, ignore_eos=True)
    ids = [
        rig.add(p, params, adapters=use if yes else ())
        for p, yes in zip(prompts, adapted or [False] * len(prompts), strict=True)
    ]
    answers = rig.drain()
    for request_id in ids:
        last = answers[request_id, 0].last
        assert last.finish_reason == "length", last
    return [answers[request_id, 0] for request_id in ids]


def _check_greedy(family: Family, prompts: Any, found: Sequence[Sequence[int]], adapted: bool) -> None:
    """Each token is the most likely one by transformers."""
    for prompt, tokens in zip(prompts, found, strict=True):
        logits = family.logits([*prompt, *tokens], adapted)[len(prompt) - 1 : -1]
        assert logits.argmax(-1).tolist() == list(tokens), f"{family.case}, adapted: {adapted}"


def _check_adapted_tokens(rig: Rig, family: Family, prompts: Any, plain: Sequence[Sequence[int]]) -> None:
    """A mixed batch of the base, whose tokens stay the same, and the adapter."""
    rig.engine.load_adapter("adapter", family.adapter)
    found = _answers(rig, [*prompts, *prompts], [False] * len(prompts) + [True] * len(prompts))
    assert found[: len(prompts)] == list(plain), f"{family.case}: beside adapted seqs"
    _check_greedy(family, prompts, found[len(prompts) :], True)


def _check_prefix_hits(rig: Rig, family: Family, prompt: Sequence[int]) -> None:
    """A prompt that leaves an earlier one in the middle of its pages, with the base and with the adapter."""
    other = [*prompt[:22], *_seqs(40)[0][31:]]
    ways = (False, True) if family.adapted is not None else (False,)
    for adapted, answer in zip(ways, _all_answers(rig, [other] * len(ways), ways), strict=True):
        _check_greedy(family, [other], [answer.token_ids], adapted)
        assert answer.deltas[0].num_cached_tokens, f"{family.case}: no cached pages were used, adapted: {adapted}"
