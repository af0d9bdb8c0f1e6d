"""A learner's cell, run as a notebook runs it."""


def part_in(source, name):
    """What the cell defines by this name."""
    space = {"__name__": "__main__"}
    exec(compile(source, "<cell>", "exec"), space)
    return space[name]
