"""Checkpoints of ternary weights: `"quantization_config": {"quant_method": "ternary"}` in config.json.

Each weight is -1, 0 or 1 times the step of its output. A matrix X [N, K] is stored as `X.trits` uint8 [N, ceil(K / 5)],
where a byte is Σ (weight + 1) · 3^i over five weights i, `X.step` float32 [N], and `X.inputs` int64 [1], which is K.
"""

from quire.plugin import Quantization, hookimpl


def checkpoint(config):
    """The format has no settings. Torch is imported here, because listing plugins should not import it."""
    from quire_ternary.storage import TernaryFormat

    return TernaryFormat()


@hookimpl
def quire_quantizations():
    yield Quantization("ternary", checkpoint=checkpoint)
