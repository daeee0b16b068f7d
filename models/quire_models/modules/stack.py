"""The common base of models: blocks, one after the other, and the final norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from quire_models.modules.projection import is_batch_invariant
from quire_models.step.block_taps import with_taps

if TYPE_CHECKING:
    from quire_models.modules.builder import ModuleBuilder
    from quire_models.sharding.model import AttachedShard
    from quire_models.sharding.stage_flow import ModelStage
    from quire_models.step.forward_batch import ForwardBatch


@dataclass(frozen=True)
class OpTimes:
    """Result of `TransformerStack.profile`: rows() returns (operation, calls, seconds, bytes, FLOPs) for each operation
    so far; the last two are None where they are not known.
    """

    rows: Callable[[], Sequence[tuple[str, int, float, float | None, float | None]]]


class TransformerStack(nn.Module):
    """Common base of decoders and encoders: blocks, which run as one op where possible, and the final norm.

    tower: converts tensors of images or audio to the embedding rows of `ForwardBatch.media`
    (`quire_models.towers.tower`). heads: pooling heads by name (`quire_models.parts.pooling`). The engine sets both.
    ops, dtype, device: those of the builder. shard: what of the whole model this is; None = all of it. stage: what of
    it is computed here; None = all. first_modules, last_modules: names of the modules that only the first stage needs,
    because they make the first block's input, or only the last one. adds_no_products: whether a forward of exactly this
    class sums nothing but in its blocks, its norm and its `first_modules`; a class that derives from it may.
    """

    first_modules: ClassVar[tuple[str, ...]] = ("embed", "positions", "types", "embed_norm", "embed_in")
    last_modules: ClassVar[tuple[str, ...]] = ("norm", "head", "embed_out")
    adds_no_products: ClassVar[bool] = False
    blocks: nn.ModuleList
    norm: nn.Module | None

    def __init__(self, width: int, builder: ModuleBuilder) -> None:
        super().__init__()
        self._width = width
        self.tower: nn.Module | None = None
        self.heads = nn.ModuleDict()
        self.ops, self.dtype, self.device = builder.ops, builder.dtype, builder.device
        self.shard: AttachedShard | None = None
        self.stage: ModelStage | None = None
        self._read_blocks: Sequence[int] = ()
        self._run: Callable[[Tensor, ForwardBatch], Tensor] = self._bind_and_run

    def run_steps(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """What the blocks and the final norm, or those of this stage, make of x [tokens, width]. May overwrite x."""
        return self._run(x, fwd)

    def _final_norm(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        """x [tokens, width] -> [L, width], the logit rows after the final norm."""
        x = x.index_select(0, fwd.logit_rows)
        return x if self.norm is None else self.norm(x)

    def process_weights(self) -> None:
        """Bind the blocks again at the next step: they process their weights after this module."""
        self._run = self._bind_and_run

    def return_block_inputs(self, blocks: Sequence[int]) -> None:
        """From now on `forward` returns [L, (1 + len(blocks)) * width]: behind each hidden state the inputs of these
        blocks at the same token. The blocks between them are compiled to programs of their own.
        """
        self._read_blocks = blocks
        self._run = self._bind_and_run

    @contextmanager
    def profile(self) -> Iterator[OpTimes]:
        """Time the operations inside fused blocks while this context is open; without fused blocks there are none."""
        timing = getattr(self._run, "timing", None)
        if timing is None:
            yield OpTimes(list)
            return
        with timing() as rows:
            yield OpTimes(rows)

    def is_batch_invariant(self, adapters: Any) -> bool:
        """Whether no bit of a token's hidden state depends on the other tokens of a forward with these adapters and
        `ForwardBatch.batch_invariant`. False where that is not known.
        """
        if self.stage is not None or not type(self).__dict__.get("adds_no_products", False):
            return False
        first = (getattr(self, name, None) for name in self.first_modules)
        of_blocks = getattr(self._bound(), "is_batch_invariant", None)
        return of_blocks is not None and of_blocks(adapters) and all(is_batch_invariant(m, adapters) for m in first)

    def _bind_and_run(self, x: Tensor, fwd: ForwardBatch) -> Tensor:
        return self._bound()(x, fwd)

    def _bound(self) -> Callable[[Tensor, ForwardBatch], Tensor]:
        """The blocks and the final norm, bound now if they are not yet."""
        if self._run != self._bind_and_run:
            return self._run
        steps, blocks, is_last = (*self._steps(), self._final_norm), list(self.blocks), True
        if self.stage is not None:
            steps, is_last = self.stage.steps(steps, blocks), self.stage.is_last
        self._run = self.ops.fused_blocks(with_taps(steps, blocks, self._read_blocks, is_last), self._width)
        return self._run

    def _steps(self) -> Sequence[Callable[[Tensor, ForwardBatch], Tensor]]:
        """What runs before the final norm, in order."""
        return tuple(self.blocks)
