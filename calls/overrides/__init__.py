"""Answers that people write, to be given instead of the recorded ones.

overrides        the types of overrides, checked
override_toml    read override files in TOML or JSON
"""
