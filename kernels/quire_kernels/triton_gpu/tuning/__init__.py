"""Launch settings of kernels that were measured on a device, by op and shape.

`settings` says what can be chosen, `launch_table` keeps what was chosen in a file for each kind of device, `search`
finds the quickest, and `python -m quire_kernels.triton_gpu.tuning` measures. Without a file every kernel has its
default.
"""
