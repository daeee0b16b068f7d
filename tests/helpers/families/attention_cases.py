"""Cases of families whose attention is of its own kind: sinks, ALiBi, chunks, layers without positions, shared keys."""

from __future__ import annotations

from family_case import FamilyCase

CASES: tuple[FamilyCase, ...] = ()
