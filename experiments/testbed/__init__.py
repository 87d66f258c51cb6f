"""A cluster of small devices on one machine: network namespaces, shaped links, shares of the processor."""
