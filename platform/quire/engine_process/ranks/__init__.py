"""The program of ranks that run in processes of their own; `quire.engine.parallel` is what it does."""
