"""Runtimes of others: running a file in each, reading the memory that it reports, and comparing outputs."""
