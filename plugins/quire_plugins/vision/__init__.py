"""Vision: architectures with an image tower. Each has an input mapper and a tower.

An `*_inputs` or `*_media` module maps an image or video to placeholder ids and tensors in the API process; a
`*_tower` module turns the tensors into embeddings in the engine. `clip` and `image_processing` are shared.
"""
