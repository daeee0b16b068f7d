"""Prefix pages in tiers: device, host memory, disk, and stores of plugins (`quire_kv_stores`).

    PagePool ─▶ KvTiers ──(between two steps)──▶ PageWriter ─▶ TierStack ─▶ host memory, disk, …
                   ▲                                                │
                   └──(between two steps)── Lookup, in a thread ◀───┘

The prefix cache of the device is `quire.engine.scheduler.page_pool`. Pages that enter it are copied between two steps
and written by a thread. When a request is queued, a thread looks for the pages of its prompt in the tiers; those that
are read sooner than they would be computed are put into the device's prefix cache, so that the scheduler finds them
there.

`keys` names pages by content, so that other processes find them; `blobs` adds checksums; `tier` calls one store and
`tier_stack` all of them; `rates` decides between reading and computing; `build` makes it all.
"""
