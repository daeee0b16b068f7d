"""The endpoints that do not generate: health, version, metrics, plugins, adapters, tokenizers.

Each module has a `router` for one group of routes. The routes read the state of the `Service`; those of adapters change
it through `AdapterService`.
"""
