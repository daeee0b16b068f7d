"""Attention of other libraries as implementations of `paged_attention`, chosen by `--attention-backend`.

xformers         memory-efficient attention of xformers
flashinfer       FlashInfer, with one plan for a step
flash_attention  FlashAttention 2 and 3
conditions       why one of them cannot run
packed_rows      keys of several rows side by side, for libraries that read no pages
other_calls      what computes the calls that a library cannot
"""
