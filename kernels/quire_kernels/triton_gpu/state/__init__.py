"""The ops of blocks that keep a state, one launch each: a program has a part of a row's state in registers.

It advances the state by the row's tokens one after another, so that a seq gives the same numbers however it is cut
into rows. Rows with a slot below 0 begin with zeros and store no state.

convolution  `causal_conv`
delta        `gated_delta`
mamba        `ssd_scan` and `selective_scan`
norm         `gated_rms_norm`
"""
