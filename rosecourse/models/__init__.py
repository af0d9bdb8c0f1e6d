"""Models: the GPT-2 forward, and loading it."""
