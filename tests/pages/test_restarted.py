"""A cell that is run after a restart says what to do, and so does a stopped one; other errors stay as they are."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from rosecourse.pages.interrupted import STOPPED
from rosecourse.pages.restarted import HINT, load_ipython_extension


@pytest.fixture
def shell():
    made = InteractiveShell(colors="nocolor")
    load_ipython_extension(made)
    yield made
    made.history_manager.end_session()


@pytest.mark.parametrize(
    ("cells", "hinted"),
    [
        (["rc.load_model()"], True),
        (["check(MyKVAppend, '036')"], True),
        (["rc = 1", "lesson"], True),  # the imports alone have run
        (["lesson = 1", "leson"], False),  # a slip of the pen
        (["prnt(1)"], False),
        (["import rosecourse\nrosecourse.nothing"], False),
        (["1 / 0"], False),
    ],
)
def test_the_hint_follows_a_name_that_is_gone(shell, cells, hinted, capsys):
    *before, last = cells
    for cell in before:
        shell.run_cell(cell)
    result = shell.run_cell(last)
    out = capsys.readouterr().out
    assert isinstance(result.error_in_exec, NameError | ZeroDivisionError | AttributeError)
    assert type(result.error_in_exec).__name__ in out  # the traceback itself is there
    assert (HINT in " ".join(out.split())) == hinted


CALLED = "def work():\n    raise KeyboardInterrupt  # the press\n"
CALLS = "from rosecourse.measure.stats import interleave_all\ninterleave_all([work], rounds=3)"


def test_an_interrupt_is_told_by_the_cells_lines_and_what_to_do(shell, capsys):
    shell.run_cell(CALLED)
    result = shell.run_cell(CALLS)
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    out = capsys.readouterr().out
    assert out.splitlines()[-1].endswith(STOPPED)
    assert out.index("interleave_all") < out.index("# the press")
    assert out.count("File ") == 2  # the two cells; not those of the package, and none of IPython's


def test_an_interrupt_before_the_first_line_of_a_cell_is_told(shell, capsys):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        shell.CustomTB(type(error), error, error.__traceback__)
    assert capsys.readouterr().out.splitlines()[-1].endswith(STOPPED)
