"""Engines that run networks: in an arena of exactly the planned bytes, on lanes of the CPU, or as one CUDA graph."""
