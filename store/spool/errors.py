"""Errors of writing to a spool."""


class SpoolError(RuntimeError):
    """A record cannot be written, for a reason outside this program."""


class SpoolFull(SpoolError):
    """There is no more room, on disk or in memory."""


class SpoolBroken(SpoolError):
    """The disk refuses to write or sync."""


class SpoolTaken(SpoolError):
    """Another process writes to this spool."""
