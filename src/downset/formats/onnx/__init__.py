"""ONNX model files."""
