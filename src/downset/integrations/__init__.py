"""Our plans inside other people's compilers and runtimes."""
