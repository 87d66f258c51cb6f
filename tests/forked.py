"""One server of workers for all tests of a process, and processes that measure are forks of it.

The product starts a new server where the environment has changed, and pytest writes the name of each test there; and
what measures a session runs in a new interpreter, which takes 0.3 s of CPU: `fit` of one .onnx file starts seven. That
each of them is new is the subject of tests that are marked `new_processes`."""

from downset.process import isolation
from downset.runtimes import ort

__all__ = ["keep_server", "measure_in_forks"]


def keep_server():
    """The name of the test that runs is no reason for a new server."""
    environment = isolation._environment
    isolation._environment = lambda: {
        name: text for name, text in environment().items() if name != "PYTEST_CURRENT_TEST"
    }


def measure_in_forks(item):
    """From here on, for the test that begins and the fixtures that it makes, unless it is marked."""
    new = item.get_closest_marker("new_processes") is not None

    def isolated(*arguments, fresh=False, **options):
        return isolation.isolated(*arguments, fresh=fresh and new, **options)

    ort.isolated = isolated
