"""A class that uses names of the notebook gets a verdict, whether or not these can be copied or sent."""

import re
import threading

import pytest
import torch

import rosecourse as rc
from rosecourse.lab import check
from rosecourse.lab.checks import checking
from rosecourse.lab.checks.by_value import copies_of
from rosecourse.lab.checks.names_used import names_used
from rosecourse.lab.checks.own_process import run_apart
from rosecourse.lab.world.causes import Cause
from rosecourse.lab.world.tiny_gpt2 import random_gpt2
from tests.support.right_parts import NumpyRows, RowsByTable

engine = rc.InferenceEngine(random_gpt2(3, 2, 4, 32), rc.EngineConfig(block_size=4, num_blocks=40, max_seq_len=32))
sessions = [engine.new_session([1, 2, 3], rc.SamplingParams(max_new_tokens=9)) for _ in range(2)]
lock, numbers = threading.Lock(), (n for n in range(10**6))
kept = {}


class Locked(RowsByTable):
    """Right, and its names cannot be copied."""

    def __call__(self, sessions):
        with lock:
            self.numbers = numbers
            return super().__call__(sessions)


class Misspelt(NumpyRows):
    def __call__(self, sesions):
        return NumpyRows.__call__(self, sessions)


class LayersOfAnother(RowsByTable):
    def no_blocks(self):
        return super().no_blocks()[: engine.kv.num_layers - 2]


class KnowsAnEngine(RowsByTable):
    """Right, and reads an engine that has nothing to do with it."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.other = engine.kv.num_layers


class KeptElsewhere(RowsByTable):
    """Goes by the number of blocks of the first engine, kept in a global, beside a name that cannot be copied."""

    def write(self, rows, layer, ids, start):
        with lock:
            size = kept.setdefault("blocks", self.kv.num_blocks)
            rows[layer, start : len(ids)] = torch.tensor([i - layer * size for i in ids[start:]])


@pytest.fixture
def elsewhere(monkeypatch):
    """As where a GPU is used: an interpreter of its own tries the part."""
    monkeypatch.setattr(checking, "run_apart", lambda work, hear, fork: run_apart(work, hear, fork=False))


def test_a_right_part_is_judged_whatever_it_uses():
    assert check(Locked, "036").passed
    verdict = check(KnowsAnEngine, "036")
    assert verdict.passed
    assert "Note: the class uses `engine`, a name from outside the class" in str(verdict)


@pytest.mark.parametrize(
    ("part", "name", "line", "why"),
    [
        (
            Misspelt,
            "sessions",
            "in __call__: return NumpyRows.__call__(self, sessions)",
            "`__call__` has `sesions`, and reads `sessions`: one of the two is misspelt",
        ),
        (
            LayersOfAnother,
            "engine",
            "in no_blocks: return super().no_blocks()[: engine.kv.num_layers - 2]",
            "a part works with what it is given, __init__(model, kv, config), __call__(sessions), and keeps in `self`",
        ),
    ],
)
def test_a_wrong_part_with_an_engine_of_the_notebook_is_told_which_name_it_uses(part, name, line, why):
    verdict = check(part, "036")
    assert verdict.cause is Cause.INTERFACE, verdict
    assert f"the class uses `{name}`, a name from outside the class, in the place of its own" in str(verdict)
    assert re.search(rf"in line \d+, {re.escape(line)}", str(verdict)), verdict
    assert f"Perhaps:  {why}" in str(verdict)
    assert len(verdict.faults) > 1


@pytest.mark.parametrize(("part", "name", "of"), [(LayersOfAnother, "engine", "Inference"), (Locked, "lock", "lock")])
def test_what_another_interpreter_cannot_get_is_named(part, name, of, elsewhere):
    verdict = check(part, "036")
    assert verdict.cause is Cause.INTERFACE, verdict
    assert f"uses `{name}`, a name from outside the class, which cannot be taken to the process" in str(verdict)
    assert f"{name}: an object of {of}" in str(verdict)
    assert "cannot pickle" in str(verdict)


def test_a_class_that_itself_holds_something_of_the_kind_is_told_the_remedy(elsewhere):
    class Holds(RowsByTable):
        lock = threading.Lock()

    assert "make what another process cannot get" in str(check(Holds, "036"))
    assert check(RowsByTable, "036").passed


def test_names_are_those_of_closures_and_of_functions_that_are_called():
    inner = [1]

    class Mine:
        def __call__(self):
            return [n + 1 for n in inner], reads_a_global()

    assert {used.name: used.value for used in names_used(Mine)} == {
        "inner": inner,
        "reads_a_global": reads_a_global,
        "kept": kept,
    }


def reads_a_global():
    return kept


def test_copies_have_globals_of_their_own_and_share_what_cannot_be_copied():
    def work():
        kept["n"] = kept.get("n", 0) + 1
        return kept["n"], lock, engine, sessions[0]

    copy = copies_of(work)
    assert copy()() == copy()() == (1, lock, engine, sessions[0])
    assert not kept


def test_what_is_remembered_is_found_beside_a_name_that_cannot_be_copied():
    verdict = check(KeptElsewhere, "036")
    assert verdict.cause is Cause.STATE_KEPT, verdict
