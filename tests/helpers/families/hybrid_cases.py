"""Cases of hybrids: families with a recurrent state beside attention, or without attention."""

from __future__ import annotations

from family_case import FamilyCase

CASES: tuple[FamilyCase, ...] = ()
