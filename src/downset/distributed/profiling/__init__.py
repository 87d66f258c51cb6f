"""Clusters measured: the rates of devices and links, as the planners count them."""
