"""What each command does; `proxy.cli` has their syntax.

record           `playhead record`
replay           `playhead replay`
fork             `playhead fork` and `playhead resume`
bisect           `playhead bisect`
calibrate        `playhead calibrate`
check            `playhead check`
judge            `playhead judge`
export           `playhead export` to files
export_spans     `playhead export --format otlp`
import_files     `playhead import`
up               `playhead up`
store_elsewhere  ask after the store server of `up --part proxy`
view             `playhead view`
code_version     the Git commit of the code that a command runs
generations      record what a replay is missing
override_file    read an override file
"""
