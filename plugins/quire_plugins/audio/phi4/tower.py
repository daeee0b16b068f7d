"""The module of `Phi4Tower`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from quire_models import Items, ModuleBuilder, TowerCall

if TYPE_CHECKING:
    from quire_models.towers.tower import TowerContext
    from quire_plugins.audio.phi4.phi4 import Phi4Tower


class SomeItemsCall(TowerCall):
    """The call of a tower for some of its items only. chosen: their indices among all `count`."""

    def __init__(self, whole: TowerCall, chosen: Sequence[int], count: int) -> None:
        self._whole, self._chosen, self._count = whole, tuple(chosen), count

    def context(self, counts: Sequence[int], lengths: Sequence[int] | None = None) -> TowerContext:
        """The context in which the chosen items have these numbers of tokens, and the others none."""
        of_all = dict(zip(self._chosen, counts, strict=True))
        runs = counts if lengths is None else lengths
        return self._whole.context([of_all.get(i, 0) for i in range(self._count)], runs)


class Phi4TowerModule(nn.Module):
    """Images, which have `pixels`, and audio to embeddings."""

    def __init__(self, width: int, part: Phi4Tower, builder: ModuleBuilder) -> None:
        super().__init__()
        self.images = part.images.build(width, builder)
        self.audio = part.audio.build(width, builder)

    def forward(self, items: Items, call: TowerCall) -> list[Tensor]:
        """Rows of each item."""
        found: dict[int, Tensor] = {}
        for module, of_images in ((self.images, True), (self.audio, False)):
            chosen = [i for i, item in enumerate(items) if ("pixels" in item) == of_images]
            if chosen:
                rows = module([items[i] for i in chosen], SomeItemsCall(call, chosen, len(items)))
                found |= dict(zip(chosen, rows, strict=True))
        return [found[i] for i in range(len(items))]

    def dummy_input(self) -> tuple[Mapping[str, Tensor], int]:
        """An image, which takes more memory than audio."""
        found: tuple[Mapping[str, Tensor], int] = self.images.dummy_input()  # type: ignore[operator]
        return found
