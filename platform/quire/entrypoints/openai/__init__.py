"""The server under the import path that vLLM has for it."""
