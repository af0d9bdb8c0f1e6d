"""What a command has written, and which rung of the ladder an engine is."""

from rosecourse import LESSONS

RUNGS = [rung.number for rung in LESSONS]


def written(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rung_of(engine):
    """The number of the lesson after which an engine is."""
    step = engine.decode_step
    work = getattr(getattr(step, "runner", None), "work", None)  # holds those that the step has handed to its runner

    def kind(name):
        return type(getattr(step, name, None) or getattr(work, name, None))

    def made_of(parts):
        names = ("block_tables", "forward", "kv_append", "copy_blocks", "rows", "runner")
        rest = {name: getattr(parts, name) for name in names}
        alike = [kind(name) is (type(None) if part is None else part) for name, part in rest.items()]
        if hasattr(work, "forward"):
            alike.append(type(work.forward.model.ops) is parts.ops)
        return type(engine.kv) is parts.cache and type(step) is parts.step and all(alike)

    return next(rung.number for rung in LESSONS if made_of(rung.after))
