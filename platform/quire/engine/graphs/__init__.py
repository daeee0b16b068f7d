"""CUDA graphs of decode steps: for which models, how many rows, and what they take of the device's memory."""
