"""Keeps responses and conversations in SQLite.

`store` runs operations in a thread, `database` has the transactions, `opening` the file and its tables, and `retention`
keeps the database within limits.
"""
