"""Medusa: heads on the last hidden state, each of which predicts one of the next tokens.

Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads", arXiv 2401.10774.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl


def _build(context: DrafterContext) -> DrafterImpl:
    from quire_drafters.heads.medusa_drafter import MedusaDrafter  # torch is imported when a drafter is built
    from quire_drafters.heads.medusa_heads import load_heads

    return MedusaDrafter(load_heads(context), context.target, context.wants_probs)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("medusa", _build, ("model", "revision"))
