"""`LLM`: a model in this process for scripts and notebooks, with the interface of vLLM's `LLM` class.

`llm` has the class and its methods; `arguments` normalizes what they take. `parts` loads engine, tokenizer and plugins
(`LLMParts`). `chat`, `pooling` and `speech` turn conversations, texts to pool and recordings into prompts.
All pass prompts to `requests`, which loads adapters and builds requests; `offline_runner` adds these to the engine,
steps it, and collects the outputs (`quire.text.outputs`).
"""
