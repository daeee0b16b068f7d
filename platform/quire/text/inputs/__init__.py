"""Prompts as callers write them to prompts as the engine takes them.

`inputs` accepts text, token ids or maps, tokenizes, truncates and validates them (`to_prompt`). If there are media,
`multimodal` finds their markers (`numbered_markers`: those with numbers), runs the input mappers of plugins on the
decoded items, and `prompt_assembly` puts ids and media together. `pooling_inputs` builds many prompts and text pairs at
once for pooling. `context` builds the `Context` that plugins get.
"""
