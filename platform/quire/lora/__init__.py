"""Import paths that vLLM has for adapters in requests."""
