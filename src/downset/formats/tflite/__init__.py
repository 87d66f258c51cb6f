"""TensorFlow Lite model files: `read.load_tflite`, `write.export_tflite`; rewrites go through `write_rewritten`."""
