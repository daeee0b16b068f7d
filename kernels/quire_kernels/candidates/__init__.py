"""What `quire_kernels.select` chooses from: the protocol of implementations, and those of this package."""
