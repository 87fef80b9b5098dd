"""On the wire: an engine tells what goes by, the recorder redacts and keeps it, the command line joins them.

- door: one process that listens, with one engine (`mitm`) in it and one spool of its own (`worker`).
- recorder: facts from the engine in, redacted events out to the spool.
- settings, up, cli: one typed configuration, the supervisor, and the commands.
"""
