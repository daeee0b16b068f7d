"""The ops in C++ for CPUs (x86-64 and AArch64), called through ctypes.

`isa` detects the instruction sets, `build` compiles `csrc/` for the best one at first use, and `library` loads it.
`ops.CpuOps` and `sampling.CpuSampling` have a method per op: it describes its tensors by the structs of `structs` and
runs a program of one instruction. `linear/` packs weights, `low_rank` adapters. `compiled/` traces whole runs of blocks
into one program, which then takes one native call per step. `implementations` offers all of them to
`quire_kernels.select`.
"""
