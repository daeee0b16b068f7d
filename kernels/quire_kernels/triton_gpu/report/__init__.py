"""What the Triton kernels need of a GPU, found without one: python -m quire_kernels.triton_gpu.report."""
