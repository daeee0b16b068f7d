"""Text to token ids and back.

`tokenizer` has the class `Tokenizer`; `files` reads its configuration files, and `backends` and `mistral` wrap the
libraries it runs on. `decode` decodes ids while they arrive, and `token_bytes` gives the bytes of single tokens.
`long_texts` encodes long texts block by block; `pair_truncation` truncates the texts of pooling prompts.
"""
