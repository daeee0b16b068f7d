"""Tenants: what an API key of `--key-file` may do, how much, and with which share of the engine.

`key_file` reads the text of the file, `tenant` has what it says, `scopes` which scope a route needs, `buckets` and
`meter` count requests and tokens (none of them does I/O). `tenants` holds the file in force, `middleware` refuses
requests, `ticket` is what one request may still use, `spent` keeps the tokens of a month, `edit` makes and revokes
keys.
"""
