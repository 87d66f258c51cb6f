"""ONNX model files."""

__all__ = ["LARGEST_FILE"]

LARGEST_FILE = 1 << 31
"""The least size in bytes of a file that protobuf refuses."""
