"""Drafts that follow two earlier texts, the prompt and the output, also where the new text differs from them."""
