"""Sampling: logits [rows, vocab] and the sampling state of each row in, one `Sample` per row out.

    logits ─▶ logits_edits (bias, bans, penalties) ─▶ logits_processors (plugins) ─▶ grammar mask
           ─▶ temperature, top_k, top_p, min_p, draw (an op, with `rng`) ─▶ Sample

`Sampler` runs these steps over a batch; rows never influence each other. `logprobs` reports the model's own
distribution, `no_token` explains why a row has no token.
"""
