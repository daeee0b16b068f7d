"""Text architectures that differ from Llama in a few parts: norms, rotary embeddings, MLPs, parallel branches."""
