"""The APIs of other services. Each module declares a dialect."""
