"""Stages that hand rows over directly, from the devices that made them to those that read them."""
