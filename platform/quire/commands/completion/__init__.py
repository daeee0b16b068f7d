"""`platform completion`: prints a script with which a shell completes subcommands, flags and their values.

`words` collects them from the parsers of all commands; `bash`, `zsh` and `fish` write the script of their shell.
"""
