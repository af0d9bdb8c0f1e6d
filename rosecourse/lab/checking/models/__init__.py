"""The kinds of parts: how a step calls a part, and what must hold after it."""
