"""KV memory that moves between the models of a process, as they need it.

Each model reserves addresses for as many pages as it may ever have, and memory for its share. `elastic_pool` is a page
pool whose number of usable pages changes between steps; `kv_pages` gives the memory of the others back to the system;
`decisions` chooses which pools give pages and which get them, without I/O.
"""
