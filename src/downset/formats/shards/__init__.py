"""Pipeline plans as one ONNX model for each device of each stage."""
