"""Run another program of this folder with the bridge to its framework: `bridged.py CLIENT BRIDGE PROGRAM`."""

import os
import runpy
import sys
from importlib import import_module

client, bridge, program = sys.argv[1:]
sys.path.insert(0, client)
os.environ.pop("OTEL_SDK_DISABLED", None)
import_module(f"playhead.bridges.{bridge}").install()
if bridge == "opentelemetry":
    from pydantic_ai import Agent

    Agent.instrument_all()
runpy.run_path(program, run_name="__main__")
