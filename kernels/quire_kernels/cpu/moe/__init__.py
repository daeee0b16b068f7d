"""Mixtures of experts in C++: the choice of experts, and a grouped product of the tokens of each; see `csrc/moe`."""
