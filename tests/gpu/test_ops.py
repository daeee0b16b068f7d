"""The Triton ops on a GPU against the reference."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")]


def test_all_checks_pass() -> None:
    from ops_parity import run

    assert not {name: result["error"] for name, result in run().items() if result["error"]}
