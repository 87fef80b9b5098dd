"""The headers of the page. It shows texts of models, tools and web sites, and any of them may try to run as a script."""

from typing import Final

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        # No script may make HTML or code from a text, and no policy may say otherwise.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

PAGE_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "x-frame-options": "DENY",
}
"""The headers of the document, beside those of every response (`store.api.guard`)."""
