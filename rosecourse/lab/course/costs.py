"""What a step costs, in numbers that are the same on every machine; a lesson's idea takes some of it out of the step.

A learner's part has the idea if it costs no more than the course's part in each situation of the course, but for what a
cost lets it spare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType

from ...measure.counters import Counts
from ..world.ops_log import NO_OPS, OpsSeen
from ..world.situations import Situation

Binary = tuple[str, ...]  # the kernel's module and name, and each of its constants with its value


@dataclass(frozen=True)
class Seen:
    """One step of a part, watched.

    counts: what happened in it. moves: torch operations that move data, which views do not; half_moves: the same with
    half as many sessions, where these can be halved. stores: how often K in the cache has changed, and V, however that
    is done. copies: operations that put rows of K and V anywhere else. index_tensors: tensors of whole numbers that are
    made of host data or of one number, or by which K and V are indexed. list_tensors: tensors made of Python lists;
    indexed: those of them that come of an indexing by a list. arrays: NumPy arrays made.
    launched: calls of Triton's launchers.
    codes: of the functions that ran. kernels: (module, name) of those launched. binaries: those compiled for this step
    and the next. ops: what the operations around attention cost, which only their world notes.
    """

    counts: Counts
    moves: int
    half_moves: int
    stores: int
    copies: int
    index_tensors: int
    list_tensors: int
    indexed: int
    arrays: int
    launched: int
    codes: frozenset[CodeType]
    kernels: frozenset[tuple[str, str]]
    binaries: frozenset[Binary]
    ops: OpsSeen = NO_OPS


NUMBERS = re.compile(r"\((?:(\w+)/)?(\w+)\)")  # (is/are) or row(s): one word of one thing, another of more
STILL = "still {found} {words} in {situation}; the course's part of lesson {lesson} makes {right}"
GROWING = "the {many} grow with the batch: {situation} makes {found} more than one of {half}; one store makes no more"


def agreeing(text: str, found: int) -> str:
    """A text in which "(is/are)" and "row(s)" become what is said of so many: of 1, or of any other number."""
    return NUMBERS.sub(lambda forms: (forms[1] or "") if found == 1 else forms[2], text)


def no_hint(at: Situation, seen: Seen, right: int) -> str:
    return ""


@dataclass(frozen=True)
class Cost:
    """Something that a step costs.

    words: what is counted, as for `agreeing`. count: how much of it there was. spare: how much more of it a part may
    have than the course's part, however large the batch is: a little work of another style, and nothing that grows.
    sentence: what is said of a part that costs more, as for `agreeing`, with the fields found, words, many (the words
    for more than one), situation, half (of its sessions), and right, which the course's part of `lesson` costs.
    hint(situation, seen, right): what it is likely to come from; empty where nothing fits.
    """

    words: str
    count: Callable[[Seen], int]
    spare: int = 0
    sentence: str = STILL
    hint: Callable[[Situation, Seen, int], str] = no_hint

    @property
    def many(self) -> str:
        """The words for more than one."""
        return agreeing(self.words, 2)


@dataclass(frozen=True)
class Idea:
    """A lesson's idea in one situation: it takes a cost out of that step."""

    situation: Situation
    cost: Cost

    def told(self, found: int, right: int, lesson: str) -> str:
        """What is said of a part that costs `found` where the course's part of a lesson costs `right`."""
        at, cost = self.situation, self.cost
        words = {"words": agreeing(cost.words, found), "many": cost.many, "situation": at, "half": at.n // 2}
        return agreeing(cost.sentence, found).format(found=found, right=right or "none", lesson=lesson, **words)


def ideas(situations: Iterable[Situation], *costs: Cost) -> tuple[Idea, ...]:
    """Each of these costs, in each of these situations."""
    return tuple(Idea(at, cost) for at in situations for cost in costs)


# -- costs that several lessons count ---------------------------------------------------------------------------------


def append_tokens(seen: Seen) -> int:
    return seen.counts.calls_of("append_token")


def moves_for_more_sessions(seen: Seen) -> int:
    return max(0, seen.moves - seen.half_moves)


def indexed_stores(seen: Seen) -> int:
    return sum(map(seen.counts.operations_of, ("index_put", "index_copy", "scatter")))


def launches(seen: Seen) -> int:
    """Triton kernels launched; the course's own, which are compiled before they run, are seen by their wrappers."""
    return max(seen.counts.launches.total(), seen.launched)


def _index_by_list(at: Situation, seen: Seen, right: int) -> str:
    each = "each indexing by a Python list builds a tensor: build the index tensor once, for K and V"
    return each if seen.indexed > 0 else ""


CALLS = Cost("append_token call(s)", append_tokens)
LOOP = Cost("torch operation(s)", moves_for_more_sessions, sentence=GROWING)
STORES = Cost("store(s) of K and V", lambda seen: seen.stores)
COPIES = Cost("(copy/copies) of rows of K and V, by index_select or the like", lambda seen: seen.copies)
INDEX_TENSORS = Cost("index tensor(s) built", lambda seen: seen.index_tensors, hint=_index_by_list)
LAUNCHES = Cost("Triton kernel(s) launched", launches)
NO_LAUNCH = Cost(
    "step(s) without a Triton kernel",
    lambda seen: int(launches(seen) == 0),
    sentence="no Triton kernel is launched in {situation}; the course's part of lesson {lesson} launches some",
)
