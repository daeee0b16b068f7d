"""The built-in commands of `platform`.

Each module has a `Command` record: a function that adds flags to a parser, and a function that runs with the parsed
arguments. `serve` and `run_batch` load models (chosen by `models`); `chat` and `complete` use a running server through
`remote`, and `top` shows its load; `plugins` and `doctor` report on the installation. `start_banner` is what `serve`
prints. `platform bench` is a bundled plugin, `quire_bench`.
"""
