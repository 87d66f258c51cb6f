"""TensorFlow Lite model files."""
