"""The proof with the real engine: stock vLLM and ours in one process, on models made here. Not part of the package."""
