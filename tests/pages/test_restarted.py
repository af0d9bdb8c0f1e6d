"""A cell that is run after a restart says what to do, and any other NameError is left as it is."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rosecourse.pages.restarted import HINT, load_ipython_extension


@pytest.fixture
def shell():
    made = InteractiveShell()
    load_ipython_extension(made)
    yield made
    made.history_manager.end_session()


@pytest.mark.parametrize(
    ("cells", "hinted"),
    [
        (["rc.load_model()"], True),
        (["check(MyKVAppend, '036')"], True),
        (["rc = 1", "lesson"], False),  # the imports have run: it is a slip of the pen
        (["1 / 0"], False),
    ],
)
def test_the_hint_follows_a_name_that_is_gone(shell, cells, hinted, capsys):
    *before, last = cells
    for cell in before:
        shell.run_cell(cell)
    result = shell.run_cell(last)
    out = capsys.readouterr().out
    assert isinstance(result.error_in_exec, NameError | ZeroDivisionError)
    assert type(result.error_in_exec).__name__ in out  # the traceback itself is there
    assert (HINT in " ".join(out.split())) == hinted
