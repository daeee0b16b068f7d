"""Everything between the text of a user and the token ids of the engine, without HTTP and without the engine.

A conversation becomes a text (`chat`), or a recording becomes windows (`speech`). `inputs` turns text, ids and media
into a `Prompt`, with the help of `tokenizer`. The engine's output tokens become text in `outputs`; `parsing` splits
that text into reasoning, content and tool calls.
"""
