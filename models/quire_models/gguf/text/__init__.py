"""The tokenizer of a GGUF model, in the formats of the Hugging Face hub.

`vocabulary` reads its tokens, `splits` says how byte-level ones split text, and `tokenizer` writes tokenizer.json and
tokenizer_config.json, with the chat templates.
"""
