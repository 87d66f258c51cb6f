"""PyTorch kernels of the operator kinds; `table.KERNELS` lists them."""
