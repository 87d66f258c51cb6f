"""Training steps compiled by PyTorch, without and with our order."""
