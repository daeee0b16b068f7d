"""What the training scripts share: the loop, its checkpoints, optimizers."""
