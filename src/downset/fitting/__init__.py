"""The main job: a model file in, the same network needing less memory out."""
