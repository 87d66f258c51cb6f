"""Clusters of devices: the model, the TOML file, and the clusters of the PICO paper."""
