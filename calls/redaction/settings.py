"""What a user sets about redaction, as one value that is passed on whole."""

import msgspec


class RedactionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is redacted beside secrets. `calls.redaction.redactor.create_redactor` is all that reads it."""

    personal_data: bool = False
    names: tuple[str, ...] = ()
    """Names of people."""

    keep_token_claims: bool = False
    """Whether only the signature of signed web tokens in answers is replaced."""
