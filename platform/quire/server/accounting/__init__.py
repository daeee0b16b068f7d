"""Accounts of what requests used, and the audit log of what changed the server.

`records` makes a record of each ended request. `ledger` passes records to the metrics, to a writer thread and to
plugins; `writer` stores them in a SQLite database (`opening`, `store`, `retention`), and merges them (`sums`) while it
cannot. `query` and `reading` answer `GET /v1/usage` and `GET /v1/audit`, whose routes are in `routes`. `audit` records
changes.
"""
