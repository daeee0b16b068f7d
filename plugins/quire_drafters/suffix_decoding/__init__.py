"""Suffix decoding: Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024.

A sequence continues as its newest tokens did before: in its own text (`quire_drafters.lookup`) or in recent outputs of
the same scope (`RecentOutputs`). The most frequent continuation is drafted as far as it is likely (`likeliest_path`).
Arrays that are searched stand for the paper's suffix trees: they take 20 bytes per token, and C loops.
"""
