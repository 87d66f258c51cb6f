"""Partial execution: parts of a network computed strip by strip, so that large tensors are never live as a whole."""
