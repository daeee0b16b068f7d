"""EAGLE: a draft model of one block that reads features of the model. The tensors say which version it is.

Li et al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", arXiv 2401.15077; "EAGLE-2", arXiv
2406.16858; "EAGLE-3", arXiv 2503.01840.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl


def _build(context: DrafterContext) -> DrafterImpl:
    from quire_drafters.heads.eagle_files import load_eagle  # torch is imported when a drafter is built
    from quire_drafters.heads.feature_drafter import feature_drafter

    return feature_drafter(load_eagle(context), context)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("eagle", _build, ("model", "revision"))
    yield Drafter("eagle3", _build, ("model", "revision"))
