"""Child processes and what they leave: the command's two processes, workers for code of other projects, and files that
are written whole."""
