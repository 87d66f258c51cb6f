"""Partial execution: parts of a network computed strip by strip, so that never all rows of a large tensor are there."""
