"""Proofs that two model files hold the same network, without running them and without the code of the rewrites."""
