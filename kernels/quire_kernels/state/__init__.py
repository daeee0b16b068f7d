"""The ops of blocks that keep a state of fixed size for each seq: their definition, and their reference."""
