"""Whether two model files hold the same network, proven without running them and without the code that rewrites."""
