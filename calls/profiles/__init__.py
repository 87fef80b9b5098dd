"""The profiles that come with Playhead: one TOML file for each dialect, data and no code."""
