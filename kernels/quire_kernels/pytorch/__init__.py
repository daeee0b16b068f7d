"""Implementations in plain torch, for every device.

`ops` has the simple ones and exports all of them; `attention`, `row_attention`, `low_rank` and `sampling` batch the
work of a step into few torch calls. They are the fallback where neither C++ nor Triton nor a plugin has an
implementation.
"""
