"""Why somebody does not vouch for a checkpoint. Each message is one sentence for the user."""


class AnchorFailure(Exception):
    """A checkpoint was not vouched for; the message says why. It is tried again."""


class AnchorContradiction(AnchorFailure):
    """A witness has signed another history of this log: something was taken back, or two histories were signed with one key."""
