"""Causes that lie near each other, and what tells one from the other."""

import pytest

from rosecourse.lab import check
from rosecourse.lab.world.causes import Cause
from tests.support.wrong_parts import Wrong, damaged

TAKES = "(self, table: BlockTable, *, layer_idx: int, offset: int)"
GIVEN = "(session.block_ids_per_layer, layer_idx=layer_idx, offset=offset)"
BEGINS = "        if table.row_cache is None:"


def told(number, *replaced):
    """The verdict on the course's part of a lesson with some of its words replaced."""
    return check(damaged(number, Wrong("near", "", (number,), replaced)), number)


OTHER_NAMES = (TAKES, "(self, table, layer_idx, first)"), (GIVEN, GIVEN.replace("offset=", "first="))
OF_A_SESSION = (
    (TAKES, "(self, session, layer_idx, offset)"),
    (GIVEN, "(session, layer_idx=layer_idx, offset=offset)"),
    (BEGINS, f"        table = session.block_ids_per_layer\n{BEGINS}"),
)
RETURNS_TWO = ("return row\n", "return row, signature\n"), (GIVEN, f"{GIVEN}[0]")


@pytest.mark.parametrize(
    ("replaced", "says"),
    [
        ((*OTHER_NAMES, ("block_id - offset", "block_id - first")), "cannot be called so: missing a required argument"),
        (OF_A_SESSION, "has no attribute 'block_ids_per_layer'"),
        (RETURNS_TWO, "it returned an object of tuple"),
    ],
)
def test_a_row_is_given_to_whoever_asks(replaced, says):
    verdict = told("036", *replaced)
    assert verdict.cause is Cause.INTERFACE, verdict
    assert says in str(verdict)
