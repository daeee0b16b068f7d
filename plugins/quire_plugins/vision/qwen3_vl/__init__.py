"""Qwen3-VL, whose language model gets features of several layers of the encoder. `inputs` maps images and videos."""
