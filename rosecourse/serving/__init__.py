"""A server that answers as OpenAI's does: the engine in a process of its own, HTTP in another."""
