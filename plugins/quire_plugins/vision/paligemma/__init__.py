"""PaliGemma 1 and 2: SigLIP before a Gemma that sees the whole prompt in both directions."""
