"""Hypothesis without deadlines: what is slow on a busy machine is not wrong."""

from hypothesis import settings

settings.register_profile("bench", deadline=None)
settings.load_profile("bench")
