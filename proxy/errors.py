"""The one exception that ends a command: a sentence for the person who typed it."""


class Failure(Exception):
    """What happened, why, and what to do, in one sentence. The command line prints it and exits with 125."""
