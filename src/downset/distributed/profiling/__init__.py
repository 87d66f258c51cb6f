"""Measures clusters: the rates of devices and links that planners use."""
