"""Gemma 4 with images of any size: `inputs` cuts them into patches, `encoder` describes the tower."""
