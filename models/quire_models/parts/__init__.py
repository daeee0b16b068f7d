"""Descriptions of models: frozen dataclasses that import no torch.

A plugin's architecture maps a config.json to these parts. `decoder` has the blocks of language models, `encoder`,
`vision`, `audio`, `patch_grid` and `cross_attention` those of the other kinds, `pooling` the heads of embedding models
and classifiers. `part.build(width, builder)` imports the matching module of `quire_models.modules` and creates it.
"""
