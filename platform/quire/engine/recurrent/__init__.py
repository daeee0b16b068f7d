"""State of recurrent and convolution blocks beside the KV pages: who owns which slot, checkpoints, and their tensors.

A running seq owns one slot of a pool of state slots; the other slots hold checkpoints. A state cannot go back to an
earlier position, so a prefix is found in the cache only as far as a checkpoint of the state at its end exists:

    checkpoint   a copy of a running seq's slot at the end of a full page, found by the hash of that page, so that
                 adapters, media and salt are part of the key; the least recently used one is evicted first
    boundaries   where checkpoints are taken: at the last full page of a prompt, every `--state-checkpoint-interval`
                 pages, where a prompt leaves a cached prefix that has no checkpoint (Marconi, arXiv 2411.19379),
                 and where the prompts of waiting seqs part from it

`StateSlots` is the part of the scheduler: it plans the moves, cuts chunks at boundaries, and lets a seq wait whose
prefix is being computed by a seq that takes a checkpoint there. `StateRunner` carries the moves out around the forward.
Models without state have neither.
"""
