"""Text architectures that descend from GPT-2: layer norms, plain MLPs, biases, matrices fused by head."""
