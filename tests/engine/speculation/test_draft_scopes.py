"""What drafters may share between sequences: text of the same scope, which cache salts keep apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine_rig import greedy, make_rig
from speculation_rig import with_drafter

from quire.hooks import registry
from quire.records import Draft, DraftQuery
from quire_drafters.suffix_decoding.recent_outputs import RecentOutputs
from quire_drafters.suffix_decoding.suffix_drafter import SuffixDrafter, SuffixSettings
from quire_testing.tiny import tiny_llama

PROMPT = list(range(40, 60))


class WatchedDrafter:
    """Suffix decoding. scopes, num_drafted: of each call."""

    def __init__(self) -> None:
        self._drafter = SuffixDrafter(SuffixSettings(), RecentOutputs(10, 1024))
        self.scopes: list[bytes] = []
        self.num_drafted: list[int] = []

    def propose(self, queries: Sequence[DraftQuery]) -> Sequence[Draft]:
        drafts = self._drafter.propose(queries)
        self.scopes += [query.scope for query in queries]
        self.num_drafted += [len(draft.token_ids) for draft in drafts]
        return drafts

    def end(self, seq_ids: Sequence[int]) -> None:
        self._drafter.end(seq_ids)


def test_answers_of_another_salt_are_not_drafted(tmp_path: Path) -> None:
    drafter = WatchedDrafter()
    config = {"method": "watched", "num_speculative_tokens": 4, "adaptive": False}
    rig = make_rig(
        tiny_llama(tmp_path / "tiny", seed=3),
        with_drafter(registry.load(None), drafter, "watched"),
        speculative_config=config,
        max_num_batched_tokens=64,
    )
    scopes, drafted = [], []
    try:
        for salt in (None, "", "one", "two", None):
            request: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
            request_id = rig.add(PROMPT, greedy(12, ignore_eos=True), **request)
            assert rig.drain()[request_id, 0].last.finish_reason == "length"
            rig.engine.step()
            (scope,) = set(drafter.scopes)
            scopes.append(scope)
            drafted.append(drafter.num_drafted[0])
            drafter.scopes.clear()
            drafter.num_drafted.clear()
    finally:
        rig.engine.close()
    assert scopes[0] == scopes[4]
    assert len(set(scopes)) == 4
    assert drafted[0] == drafted[1] == drafted[2] == drafted[3] < drafted[4]  # the first draft knows the whole answer
