"""The scheduler: which tokens of which sequences each step computes, and which pages of the KV cache hold them.

Pure Python: no tensors and no text. `Scheduler` is the interface; requests go in, deltas come out:

    add(request) ─▶ plan() ─▶ (the runner computes the plan) ─▶ commit(plan, result) ─▶ deltas

    def plan(max_tokens):                               # planner.py
        while the running seqs need more pages than are available:
            preempt the seq that the policy chooses     # swap its pages out, or recompute it later
        divide the tokens of the step among the clients
        for seq in running:
            schedule a chunk: one token, or the rest of its prompt as far as the budget goes
        while budget is left and seq := the first candidate:    # candidates.py: swapped, then waiting
            if the pages, the budget or the number of seqs do not suffice for seq: stop
            attach the pages found in the prefix cache, or swap its pages in
            schedule a chunk
        return Plan(chunks, page copies and swaps, new and ended seqs)

    def commit(plan, result):                           # commit.py
        for chunk in plan.chunks:
            advance seq.computed; append the sampled token; fork or finish the seq
        return deltas

`state.py` holds every sequence by status, `seq.py` defines one, `page_tables.py` gives and takes pages.

Ownership of pages. A page table lists the pages of positions 0, 1, …; position p is in page p // page_size:

    tokens      │ prompt ........................................ │ output ....... │
    positions   0                       num_registered · size     computed         len(tokens)
                ├────────── registered ──────────┼───── own ──────┼─── no pages ───┤
    pages       │ found by hash, may be shared   │ last one may be│ allocated by   │
                │ (refs ≥ 1), never written again│ partly filled  │ `extend_table` │

    extend_table  allocates pages for computed … end; copies the last page first if another seq refers to it too
    fork          the child lists the parent's pages (refs + 1); the last one is copied by the first to write to it
    attach_cached a new seq lists the cached pages of its prefix (refs + 1)
    swap_out      pages are copied to host pages and freed; swap_in does the reverse, except for pages still cached
    states        slots for the state of recurrent blocks change owners with the pages: `quire.engine.recurrent`
    free          refs - 1; at 0 a registered page becomes idle (cached, evictable), any other one free

    pool.available = free pages + idle pages. A waiting seq fits if

        pages of all its tokens - cached pages + (cached pages that are idle) + spare <= pool.available

    because taking an idle page into use makes it unavailable as much as allocating one does.
"""
