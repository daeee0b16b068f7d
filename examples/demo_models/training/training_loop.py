"""What trainings share: their optimizers, and a run with its clock, its checkpoint and its log.

What is learned, and from what, is for the scripts.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn


def new_optimizers(model: nn.Module, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for embeddings and norms.

    Muon needs clearly fewer steps than AdamW alone, which is what makes an hour
    on two cores enough.  Its updates are scaled to the size of those of AdamW,
    so that one learning rate serves both.
    """
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    return [
        torch.optim.Muon(matrices, lr=learning_rate, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=learning_rate, weight_decay=0.0, betas=(0.9, 0.98), fused=True),
    ]


def rate_factor(step: int, done: float, warm_up: int) -> float:
    """Linear warm-up over so many steps, then a cosine down to a hundredth when all is done, which is 1.0."""
    return min(1.0, (step + 1) / warm_up) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


@dataclass
class Progress:
    """How far training has come; saved with the weights so that it can resume."""

    step: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The learning rate, the steps it takes to reach it, and when to end: after so many minutes or steps."""

    learning_rate: float
    warm_up: int
    minutes: float = math.inf
    steps: float = math.inf


class Training:
    """A run until time or steps are used up. learned: what gets better, and what a checkpoint holds."""

    def __init__(self, learned: nn.Module, optimizers: Sequence[torch.optim.Optimizer], plan: Plan) -> None:
        self.learned, self.optimizers, self.plan, self.progress = learned, optimizers, plan, Progress()

    def load(self, checkpoint: Path) -> None:
        """Continue from a checkpoint."""
        state = torch.load(checkpoint, weights_only=True)
        self.learned.load_state_dict(state["learned"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.progress = Progress(**state["progress"])

    def save(self, checkpoint: Path) -> None:
        """Write a checkpoint."""
        state = {
            "learned": self.learned.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": vars(self.progress),
        }
        partial = checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        # Renaming is atomic: a crash while saving leaves the old checkpoint whole.
        partial.replace(checkpoint)

    def done(self) -> float:
        """The share of the training that lies behind, by time or by steps."""
        return max(self.progress.seconds / 60 / self.plan.minutes, self.progress.step / self.plan.steps)

    def update(self, loss: torch.Tensor) -> None:
        """Change all weights a little so that the loss becomes less."""
        loss.backward()
        nn.utils.clip_grad_norm_(self.learned.parameters(), 1.0)
        rate = self.plan.learning_rate * rate_factor(self.progress.step, self.done(), self.plan.warm_up)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad()

    def run(
        self,
        step: Callable[[], dict[str, float]],
        *,
        save: Callable[[], None],
        save_every: float = math.inf,
        evaluate: Callable[[], None] | None = None,
        evaluate_every: int = 1,
    ) -> None:
        """Take steps to the end. `step` gives losses by name; save_every: in minutes, evaluate_every: in steps."""
        next_save, losses = self.progress.seconds + 60 * save_every, defaultdict[str, list[float]](list)
        while self.done() < 1.0:
            begin = time.perf_counter()
            for name, loss in step().items():
                losses[name].append(loss)
            self.progress.step += 1
            self.progress.seconds += time.perf_counter() - begin
            if self.progress.step % 50 == 0:
                self._log(losses)
                losses.clear()
            if self.progress.seconds >= next_save:
                save()
                next_save = self.progress.seconds + 60 * save_every
            if evaluate and self.progress.step % evaluate_every == 0:
                evaluate()
        save()

    def _log(self, losses: dict[str, list[float]]) -> None:
        means = "  ".join(f"{name} {sum(values) / len(values):.4f}" for name, values in losses.items())
        minutes, done = self.progress.seconds / 60, 100 * self.done()
        print(f"step {self.progress.step}  {minutes:.1f} min  {done:.0f} %  {means}", flush=True)
