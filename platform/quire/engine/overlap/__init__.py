"""Steps that are launched while the device computes the one before them.

may_overlap         for which models
overlapping_runner  `ModelRunner` that leaves sampled tokens on the device until a plan is finished
sampled_tokens      these tokens, where the next step finds them
"""
