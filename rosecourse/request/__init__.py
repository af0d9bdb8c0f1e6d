"""A request inside the engine: its tokens, how the next one is chosen, and the text that it adds."""
