"""`platform pull`, `list`, `show` and `rm`: the models of the Hugging Face cache on this machine.

The cache is the one that other programs use too. `cached` reads it; `commands` has the four commands, and `details`
what `show` prints.
"""
