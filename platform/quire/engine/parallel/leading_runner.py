"""The runner of the leader: every plan goes to all followers before it is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from quire.engine.adapters.revision import AdapterRevision
from quire.engine.loading.load import LoadedModel
from quire.engine.overlap.overlapping_runner import OverlappingRunner
from quire.engine.parallel.adapters.mirrored_runtime import MirroredAdapter
from quire.engine.parallel.leader import Leader
from quire.engine.parallel.messages import PlacedAdapter
from quire.engine.parallel.one_rank import OneRank
from quire.engine.runner.launched_plan import LaunchedPlan
from quire.engine.runner.model_runner import ModelRunner
from quire.engine.runner.sizes import RunnerSizes
from quire.errors import EngineDied
from quire.types import AdapterRef, NewSeq, Plan
from quire_kernels.groups.group import RankLost


def runner_of(
    ranks: Leader | OneRank,
    revisions: Mapping[AdapterRef, AdapterRevision],
    overlaps: bool,
    divisions: int,
    loaded: LoadedModel,
    *rest: Any,
) -> ModelRunner:
    """The runner of the first rank. revisions: adapters that sequences may refer to. overlaps: whether steps of one
    rank are launched while the one before runs. divisions: see `num_divisions`. rest: as of `ModelRunner`.
    """
    if isinstance(ranks, OneRank):
        return OverlappingRunner(loaded, *rest) if overlaps else ModelRunner(loaded, *rest)
    if ranks.flow is None:
        return LeadingRunner(ranks, revisions, loaded, *rest)
    from quire.engine.parallel.stages.leading_runner import StagedLeadingRunner

    return StagedLeadingRunner(divisions, ranks, revisions, loaded, *rest)


class LeadingRunner(ModelRunner):
    """Computes plans together with the followers of `leader`. revisions: adapters that sequences may refer to."""

    def __init__(
        self,
        leader: Leader,
        revisions: Mapping[AdapterRef, AdapterRevision],
        loaded: LoadedModel,
        sizes: RunnerSizes,
        *rest: Any,
    ) -> None:
        super().__init__(loaded, sizes, *rest)
        self._leader, self._revisions = leader, revisions
        leader.build_runners(sizes, loaded, self._tap.reads if self._tap is not None else None)

    def launch(self, plan: Plan) -> LaunchedPlan:
        """Launch a plan on all ranks. Raises EngineDied if one of them is gone, RankLost if the step failed on one."""
        with self._on_ranks():
            self._leader.begin_plan(self._leader.send_plan(plan, self._placed(plan.started)))
            return super().launch(plan)

    @contextmanager
    def _on_ranks(self) -> Iterator[None]:
        """Meanwhile this rank computes with the others. Raises EngineDied in the place of a lasting RankLost."""
        before = torch.get_num_threads()
        torch.set_num_threads(self._leader.threads)  # in this thread, which may also run models of one rank
        try:
            yield
        except RankLost as error:
            if not error.lasting:
                raise
            self._leader.fail(f"{error}")
            raise EngineDied(f"A rank of the model was lost: {error}. The models are loaded again.") from error
        finally:
            torch.set_num_threads(before)

    def reset(self) -> None:
        """Drop every sequence on all ranks."""
        super().reset()
        self._leader.reset()

    def _placed(self, started: tuple[NewSeq, ...]) -> dict[AdapterRef, PlacedAdapter]:
        """The adapters of new sequences, with their slots."""
        found: dict[AdapterRef, PlacedAdapter] = {}
        for use in (use for new_seq in started for use in new_seq.adapters):
            adapter = self._revisions[use.ref]
            assert adapter.runtime is not None, "it was read"
            loaded: MirroredAdapter = adapter.loaded
            found[use.ref] = PlacedAdapter(loaded.handle, adapter.runtime.runtime_index, adapter.slot, adapter.metadata)
        return found
