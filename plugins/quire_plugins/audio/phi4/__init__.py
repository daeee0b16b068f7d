"""Phi-4 multimodal: SigLIP on crops and a conformer in the prompt of a Phi-3, with a LoRA for each of them."""
