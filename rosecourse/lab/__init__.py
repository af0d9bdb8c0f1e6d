"""The learner's lab: predict, build the part, have it checked, race it, hunt the bug."""

from .checking import check

__all__ = ["check"]
