"""Keeps responses and conversations in SQLite.

`store` runs operations in a thread, `database` has the transactions, and `retention` keeps the database within limits.
"""
