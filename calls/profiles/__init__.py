"""The profiles that come with Playhead: one TOML file for each dialect, data and no code.

`built_in.json` is made of them by `python -m store.active_profiles`.
"""
