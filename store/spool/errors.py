"""Why a record cannot be kept."""


class SpoolError(RuntimeError):
    """Something cannot be kept, for a reason outside of us."""


class SpoolFull(SpoolError):
    """There is no more room for it, on disk or in memory."""


class SpoolBroken(SpoolError):
    """The disk refuses."""


class SpoolTaken(SpoolError):
    """Another process writes this spool."""
