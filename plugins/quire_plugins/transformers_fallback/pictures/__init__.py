"""Pictures of models without a plugin: transformers' own processor, and the model's own method for their embeddings.

processing      the processor of a model folder: from a picture to ids, tensors and positions
tower           from the tensors to rows, by the model's `get_image_features`
verification    compares a prompt with rows in it with what the model makes of the picture itself
"""
