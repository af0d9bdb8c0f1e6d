"""How a part is tried: pools of sessions, stories, models of each kind of part, and what a step costs."""


class Wrong(Exception):
    """What does not hold after an operation of a story, and what is found instead, in one line or more."""
