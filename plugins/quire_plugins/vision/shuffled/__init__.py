"""Idefics 3, SmolVLM and InternVL: square tiles, whose squares of patches are joined into one embedding each.

The `*_inputs` modules cut images into tiles in the API process.
"""
