"""Ask models the same again and again, and say whether they answer otherwise than before (docs/canary.md).

canary_settings  the setting `[[canary]]`
pinned_calls     the calls that a canary asks, from recordings
credentials      the key of an environment variable in place of the redacted one
ask              the program that sends them; it is recorded as a run
traffic          what ordinary traffic says of the models
shots            one shot of a canary: ask, add what was found, tell
webhook          tell a webhook that a model has changed
report           show canaries
schedule         shots at their times, while `up` runs
"""
