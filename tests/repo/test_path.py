"""One greedy request, from building the engine to its text: few enough lines to read them all."""

import sys
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import rosecourse
from rosecourse import InferenceEngine, SamplingParams, load_model

PACKAGE = Path(rosecourse.__file__).parent
MOST_LINES = 927  # of the package, each counted once


@contextmanager
def lines_executed(folder):
    """Collects the lines of Python files under a folder that this thread executes: line numbers by file.

    Lines at the top level of a module are left out: whether they are executed depends on what was imported before.
    """
    lines = defaultdict(set)
    inside = f"{folder}/"

    def trace(frame, event, _):
        code = frame.f_code
        if not code.co_filename.startswith(inside) or code.co_name == "<module>":
            return None
        if event == "line":
            lines[code.co_filename].add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


def table(lines):
    """Lines per module, most first, and in all."""
    counts = {str(Path(file).relative_to(PACKAGE)): len(numbers) for file, numbers in lines.items()}
    rows = [*sorted(counts.items(), key=lambda row: -row[1]), ("in all", sum(counts.values()))]
    return "\n".join(f"{count:5} {name}" for name, count in rows)


def test_one_greedy_request_is_short_enough_to_read():
    with lines_executed(PACKAGE) as loading:
        model = load_model(device="cpu")
    with lines_executed(PACKAGE) as lines:
        (result,) = InferenceEngine(model).generate("My dear", SamplingParams(max_new_tokens=20))

    assert len(result.token_ids) == 20
    assert {"kv", "decode", "engine", "models"} <= {Path(file).relative_to(PACKAGE).parts[0] for file in lines}
    executed = sum(map(len, lines.values()))
    assert executed <= MOST_LINES, f"{table(lines)}\n\nNot counted, to load the model:\n{table(loading)}"
