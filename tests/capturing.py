"""What a capture of a CUDA graph forbids, checked on PyTorch's meta device: it has shapes and element types but no
values, so whatever reads one fails by itself; copies from the CPU and operators on two devices are found here."""

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Rules(TorchDispatchMode):
    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        # A number in a tensor of no dimension goes along as an argument of the kernel.
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in given if tensor.dim() or tensor.device.type == "meta"}
        result = operator(*args, **(kwargs or {}))
        made = {leaf.device.type for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        assert len(devices) < 2, f"{operator} takes tensors on {devices}"
        assert not (devices == {"cpu"} and "meta" in made), f"{operator} copies from the CPU"
        assert not (devices == {"meta"} and "cpu" in made), f"{operator} copies to the CPU"
        return result


class _Literals(TorchFunctionMode):
    """Lists of Python are copied below where the other mode looks."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        literal = function in (torch.tensor, torch.as_tensor, torch.asarray)
        assert not (literal and result.device.type == "meta"), "a list of Python is copied to the device"
        return result


@contextmanager
def as_if_capturing():
    """Around what runs while a graph is captured."""
    with torch.no_grad(), _Literals(), _Rules():
        yield
