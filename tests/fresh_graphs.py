"""Graphs that are compiled here, whatever the caches hold.

`force_disable_caches` would also compile the headers of every kernel again, in a folder of its own: 3 s a graph.
"""

from contextlib import contextmanager

import torch


@contextmanager
def fresh_graphs(**settings):
    """Within it no graph comes out of a cache; machine code of equal kernels does. `settings` are Inductor's own."""
    graphs = torch._inductor.config.patch(fx_graph_cache=False, **settings)
    with graphs, torch._functorch.config.patch(enable_autograd_cache=False):
        yield
