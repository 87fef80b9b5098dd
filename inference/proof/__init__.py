"""Compare stock and patched vLLM with the real engine, on models created here. Not part of the installed package."""
