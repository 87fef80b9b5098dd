"""A whole recording and replay on one machine: an agent, the model and the tools that it asks, and the story told."""
