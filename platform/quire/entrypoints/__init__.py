"""Import paths that vLLM has for its command line and chat templates."""
