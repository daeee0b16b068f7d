"""`platform chat` and `platform complete`: use a running server from the terminal.

`command` declares the flags and chooses: on a terminal, a `session` reads messages with `prompt` (editing, history,
completion), answers slash commands (`slash`) and attaches pictures (`pictures`); in a pipe, each line is a message,
sent as it is. `conversation` keeps the messages, and `printing` shows streamed responses.
"""
