"""A fact: what must hold after an operation of a story, and what is found instead."""


class Wrong(Exception):
    """What does not hold. The message is the fact, in one line or more."""
