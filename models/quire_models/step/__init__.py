"""The inputs of one step, as layers see them.

The engine fills `forward_batch.ForwardBuffers` from numpy arrays, which gives a `ForwardBatch`: token ids, positions,
slot mapping and attention metadata on the device, and the `kv_cache.KVCache` with the pages of all seqs. `rope`
computes the cosines and sines of a step's rotary embeddings, once for all blocks.
"""
