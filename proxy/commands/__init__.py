"""What each command does; `proxy.cli` has their syntax.

record           `playhead record`
replay           `playhead replay`
fork             `playhead fork` and `playhead resume`
bisect           `playhead bisect`
calibrate        `playhead calibrate`
export           `playhead export` to files
export_spans     `playhead export --format otlp`
up               `playhead up`
generations      record what a replay is missing
override_file    read an override file
"""
