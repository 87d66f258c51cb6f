"""ONNX Runtime: its memory, modelled and measured."""
