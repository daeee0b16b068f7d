"""Compiles runs of blocks into programs that run in one native call.

`blocks.compile_blocks` calls the blocks with the proxies of `tracer` and `proxies` instead of tensors; the ops record
an instruction for each call. A `program.Program` holds the instructions and a memory arena, sets its pointers to the
tensors of each step, and runs. Blocks that cannot be traced run in Python between the programs.
"""
