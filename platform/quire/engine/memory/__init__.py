"""Memory: how much a model may take, and how many pages of KV cache that makes.

`system_memory` reads what this process may still take, `MemoryLedger` divides it among models, `profile` measures the
activations of the largest step, `kv_budget` computes the number of pages from these, and `prefault` touches the pages
in the background before steps need them.
"""
