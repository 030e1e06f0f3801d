"""Hypothesis without its deadline: the speed of the host is not under test."""

from hypothesis import settings

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")
