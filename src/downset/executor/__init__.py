"""Our engines: an arena of exactly the planned bytes, lanes on the CPU, one captured graph on CUDA."""
