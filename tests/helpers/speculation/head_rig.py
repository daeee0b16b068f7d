"""Checkpoints of draft heads, and engines whose drafter's proposals are recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from engine_rig import Rig, make_rig
from safetensors.torch import load_file, save_file
from torch import Tensor

from quire.hooks import registry
from quire.records import Draft, Drafter, DrafterContext, DraftQuery, Registry
from quire_testing.tiny import byte_tokenizer, reference_model, save

Tensors = dict[str, Tensor]


def write_head(folder: Path, config: Mapping[str, Any], tensors: Tensors, file: str = "model.safetensors") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


@dataclass
class Proposals:
    """What a drafter proposed: the query, its tokens at that time, the draft. probs: of each draft. built: the drafter
    itself.
    """

    every: list[tuple[DraftQuery, list[int], list[int]]] = field(default_factory=list)
    probs: list[Tensor | None] = field(default_factory=list)
    built: Any = None

    @property
    def num_drafted(self) -> int:
        return sum(len(draft) for _, _, draft in self.every)


class _Recorder:
    def __init__(self, built: Any, proposals: Proposals) -> None:
        self._built, self._proposals = built, proposals
        proposals.built = built

    def __getattr__(self, name: str) -> Any:
        return getattr(self._built, name)

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        drafts: Sequence[Draft] = self._built.propose(queries)
        for query, draft in zip(queries, drafts, strict=True):
            self._proposals.every.append((query, list(query.token_ids), list(draft.token_ids)))
            self._proposals.probs.append(draft.probs)
        return drafts


def recording(found: Registry, method: str, wants_probs: bool = False) -> tuple[Registry, Proposals]:
    """A registry in which the drafter `method` records what it proposes."""
    proposals = Proposals()
    known: Mapping[str, Drafter] = found.by_hook("quire_drafters")
    drafter = known[method]

    def build(context: DrafterContext) -> Any:
        return _Recorder(drafter.build(replace(context, wants_probs=wants_probs)), proposals)

    recorded = replace(drafter, build=build)
    records = {**found.records, "quire_drafters": MappingProxyType({**known, method: recorded})}
    return replace(found, records=MappingProxyType(records)), proposals


@contextmanager
def drafted_rig(
    folder: Path, method: str, head: Path | None, count: int = 4, wants_probs: bool = False, **settings: Any
) -> Iterator[tuple[Rig, Proposals]]:
    """An engine that drafts `count` tokens with the head in a folder, and what it proposes."""
    found, proposals = recording(registry.load(None), method, wants_probs)
    config = {"method": method, "num_speculative_tokens": count, "adaptive": False}
    config |= {} if head is None else {"model": str(head)}
    rig = make_rig(folder, found, speculative_config=config, **settings)
    try:
        yield rig, proposals
    finally:
        rig.engine.close()


def final_hidden(folder: Path, token_ids: Sequence[int]) -> Tensor:
    """The hidden states that the LM head of a transformers model gets, [tokens, width] float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found: Tensor = model.model(torch.tensor([list(token_ids)])).last_hidden_state[0]
    return found


def model_weights(folder: Path) -> Tensors:
    found: Tensors = load_file(folder / "model.safetensors")
    return found


def markov_llama(folder: Path, seed: int = 1) -> Path:
    """A tiny Llama of one layer whose next token depends on the last one only, so that heads can predict it exactly.

    Its attention adds nothing, all embeddings have the same length, and the final norm only scales.
    """
    model = reference_model("LlamaForCausalLM", seed, num_hidden_layers=1)
    with torch.no_grad():
        table = model.model.embed_tokens.weight
        table.div_(table.pow(2).mean(-1, keepdim=True).sqrt())
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.norm.weight.fill_(1.0)
    save(model, folder)
    return byte_tokenizer(folder)


def next_tokens(folder: Path) -> list[int]:
    """The token that a Markov model appends to each."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        found: list[int] = model(torch.arange(model.config.vocab_size)[:, None]).logits[:, -1].argmax(-1).tolist()
    return found
