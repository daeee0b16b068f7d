"""Decode steps as CUDA graphs: a step with one token a row is captured once and launched as a whole from then on.

buckets        the numbers of rows that are captured
inputs         the memory that captured steps read, filled by one copy
decode_graphs  captures a model, and runs steps
draws          captures sampling behind them
recorder       `torch.cuda.CUDAGraph`
"""
