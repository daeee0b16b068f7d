"""Qwen3-ASR: an encoder of chunks of one second in the prompt of a Qwen 3, which writes down speech."""
