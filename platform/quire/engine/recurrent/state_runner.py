"""The state of all seqs on the device, and its moves around the forward of a step."""

from __future__ import annotations

from collections.abc import Sequence

from quire.engine.loading.load import LoadedModel
from quire.engine.runner.sizes import RunnerSizes
from quire.types import Chunk, StateMoves
from quire_models import StateCache


class StateLost(Exception):
    """A forward raised after it may have advanced the state of some rows, so that their seqs must be recomputed."""


class StateRunner:
    """Owns the slots on the device and in host memory.

    After a forward of several rows raised, every one of them is suspected: its seq is computed in forwards of its own
    until it is past the chunk that was computed then.
    """

    def __init__(self, loaded: LoadedModel, sizes: RunnerSizes) -> None:
        shapes, dtype, device = loaded.decoder.state_shapes, loaded.dtype, loaded.device
        # rows that fill a captured step up have slot -1: Quire's ops keep no state of them, others index the last one
        self.cache = StateCache.allocate(shapes, sizes.num_state_slots + bool(sizes.graph_rows), dtype, device)
        self._host = StateCache.allocate(
            shapes, sizes.num_host_state_slots, dtype, "cpu", pin_memory=device.type == "cuda"
        )
        self._suspects: dict[int, int] = {}  # seq id -> end of the chunk with which a forward raised

    def before(self, moves: StateMoves) -> None:
        """Moves before the forward; all of them read what slots held when the step began."""
        StateCache.swap(self.cache, self._host, moves.swaps_out)
        self.cache.copy(moves.copies)
        self.cache.clear(moves.cleared)
        StateCache.swap(self._host, self.cache, moves.swaps_in)

    def after(self, moves: StateMoves) -> None:
        """Take the checkpoints of a step whose forward has ended."""
        self.cache.copy(moves.checkpoints)

    def suspect(self, chunks: Sequence[Chunk]) -> None:
        """A forward of these chunks raised."""
        for chunk in chunks:
            self._suspects[chunk.seq_id] = chunk.start + len(chunk.token_ids)

    def has_suspects(self, chunks: Sequence[Chunk]) -> bool:
        """Whether each of these chunks must be computed alone. Seqs that get past their suspected chunk are cleared."""
        suspects = [chunk for chunk in chunks if chunk.seq_id in self._suspects]
        for chunk in suspects:
            if chunk.start + len(chunk.token_ids) >= self._suspects[chunk.seq_id]:
                del self._suspects[chunk.seq_id]
        return bool(suspects)
