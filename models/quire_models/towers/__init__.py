"""Towers: modules that turn the tensors of images, video and audio into embedding rows for a decoder.

`tower` says what the engine calls: the tensors of some items in, one row for each position out. `vision` and `audio`
are transformer towers, `patch_grid` a vision tower for images of any size, with positions from `grid_positions`. Their
matrices and adapters work as those of `quire_models.modules`.
"""
