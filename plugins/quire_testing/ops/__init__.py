"""Conformance of operations and quantizations: inputs that kernels get wrong, and comparison with the reference.

`check` compares an implementation with `quire_kernels.reference` on the inputs of `cases`. Implementations with their
own page layout are compared in the plain layout (`page_layouts`). `quantization` checks a quantization's products.
"""
