"""No test asserts a time: the machines are shared."""

from hypothesis import settings

settings.register_profile("downset", deadline=None)
settings.load_profile("downset")
