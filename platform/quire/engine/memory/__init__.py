"""Memory: how much a model may take, and how many pages of KV cache and state slots that makes.

`system_memory` reads what this process may still take, `MemoryLedger` divides it among models, `profile` measures the
activations of the largest step, `kv_budget` and `state_budget` divide the rest between pages and state, and `prefault`
touches the pages in the background before steps need them.
"""
