"""The ways in which a KV cache goes wrong, 1 to 33, and trust is lost, 34 to 40; that each is tested.

     1 double free, stale holder        9 a request that never fits         17 a table row replaced, shrunk, grown
     2 cancel in every state           10 all need a block, none is free    18 blocks in another order
     3 a failed allocation             11 preempted at a full block         19 offsets past 2^31
     4 copy-on-write, pool exhausted   12 identical prompts in one batch    20 a staging buffer reused in flight
     5 fork from a partial block       13 a hit of the whole prompt         21 bytes that a step must not touch
     6 fork at a boundary              14 a hit evicted, a block recycled   22 threads, and close while requests run
     7 every length                    15 prefixes whose keys collide       23 a random machine over tiny pools
     8 a pool too small for all        16 NaN in what nobody holds

    24 one table: a `place` that fails             26 a copy after its write, forks of forks
    25 rows reused, swapped, come back to          27 positions wholly mixed

    28 blocks given back that a step in flight     30 a ring overwritten before it is read, a slow host
       writes to
    29 a length stop discovered late, and one
       token too many

    31 pads, and buckets that change               33 a capture that fails, or is interrupted
    32 what a capture freezes

    34 an interrupt inside bookkeeping             38 a long queue
    35 a failed request that counts as a result    39 hostile or odd files, and prompts
    36 a session in a state, or of an engine,      40 commands: odd streams, interrupts, a learner's file that
       that a call is not for                         misbehaves
    37 a stray call in another thread; a manager
       that is dropped

The random machine of test_soak.py comes to most of those of blocks; what it cannot see is in test_hazards_blocks.py and
test_hazards_values.py, each at the rung where it bites and at the last. 28 to 30 and 33 with a step in flight are in
test_pipeline.py; 31 to 33 in test_gpu_graphs.py and decode/test_runner_steps.py; what concerns a part's own code in
lab/ and the written file in records/. `cited` finds the tests of each by their docstrings.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
HAZARDS = range(1, 41)


@cache
def cited():
    """Hazard number -> the tests, and the machines of test files, whose docstrings name it."""
    found: dict[int, list[str]] = {}
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) or (isinstance(node, ast.FunctionDef) and node.name.startswith("test_")):
                for number in re.findall(r"\bHazard (\d+)\b", ast.get_docstring(node) or ""):
                    found.setdefault(int(number), []).append(f"{path.name}::{node.name}")
    return found


@pytest.mark.parametrize("number", HAZARDS)
def test_every_hazard_has_a_test_that_names_it(number):
    assert cited().get(number)


def test_no_test_names_a_hazard_that_is_not_on_the_list():
    assert set(cited()) <= set(HAZARDS)
