"""Paged attention in Triton: `op` launches the kernels of `kernels` over the tiles of `tiles`."""
