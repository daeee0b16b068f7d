"""The built-in commands of `platform`.

Each module has a `Command` record: a function that adds flags to a parser, and a function that runs with the parsed
arguments. `serve` and `run_batch` load models (chosen by `models`); `chat` and `complete` use a running server through
`remote`; `plugins` and `doctor` report on the installation. `platform bench` is a bundled plugin, `quire_bench`.
"""
