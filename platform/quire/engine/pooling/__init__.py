"""Pooling: hidden states of prompts become vectors (embeddings, classes, scores).

`pooling_config` reads from the model folder how to pool for each task. In a step the runner asks `Poolers` which
tokens' hidden states are needed and hands them over; a prompt's vector is complete with its last chunk.
"""
