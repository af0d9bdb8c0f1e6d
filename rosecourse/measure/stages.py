"""Which stages of a decode step a lesson leaves alone: steps before and after may have other stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence

# Where the time of a part is spent that is no stage of its own; for others it is `rest`.
SPENT_IN = {
    "cache": ("place",),
    "step": ("rest",),
    "rows": ("plan", "rest"),
    "forward": ("runner", "rest"),
    "kv_append": ("forward", "runner", "rest"),
}


def touched(before: Sequence[str], after: Sequence[str], changed: Collection[str]) -> set[str]:
    """The stages, and perhaps `rest`, whose times a lesson may change.

    before, after: the stages of both steps. changed: the parts that the lesson replaces, as in `Lesson.changes`. A
    stage that only one of the steps has is the lesson's doing; its work may have come from `rest`, or gone there.
    """
    common = {*before} & {*after}
    found = {*before, *after} - common
    if found:
        found.add("rest")
    for part in changed:
        found.update([part] if part in common else SPENT_IN.get(part, ("rest",)))
    return found & {*before, *after, "rest"}
