"""The operations that models are computed with, and their implementations.

    ops, attention, sampling, low_rank, moe, state    the op table: definition and signature of each op
    reference                             executable definitions, which all implementations are tested against
    pytorch, cpu, triton_gpu              implementations: plain torch, C++, Triton
    int8, quantized, quantized_pages      quantization of weights and pages in plain torch
    select                                chooses an implementation for each op, per model

`select.choose(query, implementations)` is called once when a model is loaded and returns an `Ops` with one callable per
op; modules of `quire_models` call these. Plugins add implementations of the same ops. This package imports nothing
of `quire`.
"""
