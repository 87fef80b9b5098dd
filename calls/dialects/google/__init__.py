"""The APIs of Google. Each module declares a dialect."""
