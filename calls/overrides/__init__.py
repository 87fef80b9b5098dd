"""Override files: answers that the user writes, served instead of the recorded ones.

overrides        the types of overrides, and their validation
effect_values    other times, files, variables and answers of people
override_toml    read override files in TOML or JSON
"""
