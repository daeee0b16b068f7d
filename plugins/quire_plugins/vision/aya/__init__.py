"""Aya Vision: SigLIP on the tiles of an image, in the prompt of a Command."""
