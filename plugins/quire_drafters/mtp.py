"""MTP: the layer of a model's own checkpoint that predicts a further token, in the format of DeepSeek-V3 and GLM-4.5.

"DeepSeek-V3 Technical Report", arXiv 2412.19437, section 2.2.
"""

from __future__ import annotations

from collections.abc import Iterable

from quire.plugin import Drafter, DrafterContext, DrafterImpl, hookimpl


def _build(context: DrafterContext) -> DrafterImpl:
    from quire_drafters.heads.feature_drafter import feature_drafter  # torch is imported when a drafter is built
    from quire_drafters.heads.mtp_model import load_mtp

    return feature_drafter(load_mtp(context), context)


@hookimpl
def quire_drafters() -> Iterable[Drafter]:
    yield Drafter("mtp", _build)
    yield Drafter("deepseek_mtp", _build)
