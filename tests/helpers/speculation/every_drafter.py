"""Each bundled drafter with a tiny model, and drafters some of whose drafts are made right."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lora_rig import Base
from mtp_models import FAMILIES, GLM, cut_layer, mtp_tensors
from random_heads import random_eagle, random_eagle3, random_medusa
from speculation_rig import Outputs

from quire.engine.speculation.draft_model.model_drafter import ModelDrafter
from quire.records import Draft, Drafter, DrafterContext, DraftQuery, Registry
from quire_drafters.lookup import NgramDrafter
from quire_drafters.suffix_decoding.suffix_drafter import SuffixDrafter
from quire_testing.tiny import reference_model, tiny_llama

METHODS = {
    "n-gram": "ngram",
    "suffix": "suffix",
    "same draft model": "draft_model",
    "other draft model": "draft_model",
    "medusa": "medusa",
    "eagle": "eagle",
    "eagle3": "eagle3",
    "mtp": "mtp",
}
"""Methods of --speculative-config by the name of the case."""


@dataclass(frozen=True)
class DrafterCase:
    """A model, an adapter of it, and the --speculative-config for the drafter."""

    folder: Path
    adapter: Path
    config: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.config["method"])


def drafter_case(name: str, root: Path, num_drafts: int = 4) -> DrafterCase:
    """Write the model, its adapter and the heads or the draft model of a case."""
    if name == "mtp":
        base = Base(root / "base", GLM, num_hidden_layers=2, **FAMILIES[GLM])
        model = reference_model(GLM, num_hidden_layers=3, **FAMILIES[GLM])
        folder = cut_layer(model, root / "model", mtp_tensors(False, False))
    else:
        base = Base(root / "base", "LlamaForCausalLM")
        folder = base.folder
    config = {"method": METHODS[name], "num_speculative_tokens": num_drafts, "adaptive": False}
    if name == "same draft model":
        config["model"] = str(folder)
    elif name == "other draft model":
        config["model"] = str(tiny_llama(root / "draft", seed=8, num_hidden_layers=1))
    elif name in ("medusa", "eagle", "eagle3"):
        config["model"] = str(random_head(name, root / "head"))
    return DrafterCase(folder, base.adapter("a", r=4, target_modules=["q_proj", "v_proj"]), config)


def random_head(name: str, folder: Path) -> Path:
    """Medusa or EAGLE heads for a model of two blocks."""
    if name == "eagle3":
        return random_eagle3(folder, (0, 1, 1))
    return {"medusa": random_medusa, "eagle": random_eagle}[name](folder)


@dataclass
class Helped:
    """Known outputs, with which drafts are made right, and counts. share: of the drafts that are made right."""

    outputs: Outputs = field(default_factory=dict)
    share: float = 0.6
    num_own: int = 0
    num_right: int = 0


class HelpedDrafter:
    """A drafter some of whose drafts are replaced by the right ones, of which the last may be wrong.

    So the drafter goes through all that it would if it were right often: accepted, rejected and partly accepted drafts.
    """

    def __init__(self, built: Any, helped: Helped) -> None:
        self._built, self._helped, self._rng = built, helped, random.Random(5)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._built, name)

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        return [self._draft(query, draft) for query, draft in zip(queries, self._built.propose(queries), strict=True)]

    def _draft(self, query: DraftQuery, draft: Draft) -> Draft:
        helped, prompt, output = self._helped, query.token_ids[: query.prompt_len], query.token_ids[query.prompt_len :]
        helped.num_own += len(draft.token_ids)
        if self._rng.random() >= helped.share:
            return draft
        known = (each for each in helped.outputs.get(tuple(prompt), ()) if each[: len(output)] == list(output))
        right = next(known, [])[len(output) : len(output) + query.max_drafts]
        if not right:
            return draft
        helped.num_right += len(right)
        if self._rng.random() < 0.3:
            right = [*right[:-1], (right[-1] + 1) % 256]
        return Draft(right)


def with_help(found: Registry, method: str, helped: Helped) -> Registry:
    """A registry in which drafts of the drafter are made right."""
    known: Mapping[str, Drafter] = found.by_hook("quire_drafters")
    drafter = known[method]

    def build(context: DrafterContext) -> Any:
        return HelpedDrafter(drafter.build(context), helped)

    records = {**found.records, "quire_drafters": MappingProxyType({**known, method: replace(drafter, build=build)})}
    return replace(found, records=MappingProxyType(records))


def num_kept(drafter: Any) -> int:
    """Sequences and pages that a bundled drafter has a state of."""
    built = getattr(drafter, "_built", drafter)
    if isinstance(built, NgramDrafter):
        return len(built._texts)
    if isinstance(built, SuffixDrafter):
        return len(built._texts)
    if isinstance(built, ModelDrafter):
        return len(built._cache) + len(built._batch) + built._cache._pool.num_used
    pages = getattr(built, "pages", None)
    return int(built.num_seqs) + (built.num_pages - pages.num_free if pages is not None else 0)
