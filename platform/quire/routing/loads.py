"""How much work each replica has, in tokens: prompts that it has still to compute, and a fixed number for each seq."""

from __future__ import annotations

SEQ_TOKENS = 256
"""Work of a seq that generates, as so many tokens of a prompt: each of its steps costs as much as a few of them."""


class ReplicaLoads:
    """The loads of all replicas. tokens: work in flight. num_placed: requests since the start."""

    def __init__(self, num_replicas: int) -> None:
        self.tokens = [0] * num_replicas
        self.num_placed = [0] * num_replicas
        self.total = 0

    def add(self, replica: int, tokens: int) -> None:
        """Add work, or remove it if negative."""
        self.tokens[replica] += tokens
        self.total += tokens

    def key(self, replica: int) -> tuple[int, int]:
        """Sort key: the least loaded first, then the one that was chosen least."""
        return self.tokens[replica], self.num_placed[replica]
