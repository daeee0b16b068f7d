"""Cases of latent attention."""

from __future__ import annotations

from family_case import FamilyCase

CASES: tuple[FamilyCase, ...] = ()
