"""Hooks: the specification, discovery and loading of plugins, and calls into them.

`discovery` selects entry points, and `registry.load` imports them, calls their noun hooks (`hookspecs`), and collects
the records in a `Registry`, which everything else uses. Question and event hooks become plain callables (`calls`).
`call_stats` counts every call into a plugin and switches off functions that keep failing. `plugin_options` converts
option values, `adapter_resolver` resolves names of adapters, and `plugins_off` explains which plugin is missing.
"""
