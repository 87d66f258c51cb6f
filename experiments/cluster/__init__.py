"""A running cluster under faults."""
