"""Other people's runtimes: how each runs a file, what it says it took, and how outputs compare."""
