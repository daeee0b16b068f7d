"""From a model folder to a model with weights.

`checkpoint` reads config.json and generation_config.json; `config_fields` reads single fields for architectures.
`tensor_files` opens safetensors and torch files; `weight_names` (and `weight_names_encoders`) rename their tensors to
the parameters of a model; `mapping` copies each to its parameter or slice. `weights` combines these: it first checks
all names and shapes, then loads tensor by tensor. `sentence_transformers` reads the pooling of a folder, `headless`
describes checkpoints without LM head. Every error is a `CheckpointError` that names the file or tensor.
"""
