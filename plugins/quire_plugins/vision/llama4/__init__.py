"""Llama 4 with images: tiles with 2-D rotary positions, whose squares of patches are joined."""
