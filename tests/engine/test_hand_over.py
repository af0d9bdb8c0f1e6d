"""When the tokens of a step go to their readers: while the host waits, and one step later at most where it has not to.

The device is a CPU that says of each step whether its tokens are there when the host comes to read them.
"""

from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rosecourse import BEST, EngineConfig, InferenceEngine, OnlineScheduler, SamplingParams, SchedulerManager
from rosecourse.decode import in_flight
from rosecourse.decode.delivery import Delivery
from rosecourse.engine.items import NewTokenItem, Tokens
from rosecourse.engine.reader import TokenReader
from tests.support.late_device import Behind

STEPS = 12
ALWAYS, NEVER = [True] * STEPS, [False] * STEPS


class Engine:
    """An engine that writes down launches, landings and hand-overs. there: of each landing, by turns."""

    def __init__(self, model, there):
        self.log, answers = [], list(there)
        log = self.log

        class Slot(in_flight.Slot):
            @property
            def is_there(self):
                answer = answers.pop(0) if answers else False
                log.append(("asked", answer))
                return answer

        class Noted(Behind):
            def __init__(self, *args):
                super().__init__(*args)
                self.ring.empty = deque(Slot(4, slot.host.device) for slot in self.ring.empty)

            def launch(self, sessions, user):
                super().launch(sessions, user)
                log.append(("launched", len(sessions)))

            def land(self):
                log.append(("landed", len(self.in_flight[0].sessions)))
                return super().land()

        class NotedDelivery(Delivery):
            def hand_over(self, items):
                tokens = [token for _, item in items for token in tokens_of(item)]
                if tokens:
                    log.append(("handed", tokens))
                super().hand_over(items)

        parts = BEST.with_(pipeline=Noted, delivery=NotedDelivery)
        config = EngineConfig(block_size=4, max_batch_size=4, max_seq_len=40)
        self.engine = InferenceEngine(model, config, parts)

    def read(self, num_requests=2, new_tokens=STEPS):
        """What a reader of all requests gets, request by request."""
        asked = SamplingParams(max_new_tokens=new_tokens, stop_on_eos=False)
        with SchedulerManager(OnlineScheduler(self.engine)) as manager:
            reader = TokenReader(manager)
            sessions = [reader.submit([5 + n], asked) for n in range(num_requests)]
            tokens = [(session, token.token_id) for items in reader for session, token in items]
        found = [[token for one, token in tokens if one is session] for session in sessions]
        assert found == [session.completion_ids for session in sessions]
        return found


def tokens_of(item):
    if isinstance(item, Tokens):
        return [token_id for _, token_id in item.new_tokens]
    return [item.token_id] if isinstance(item, NewTokenItem) else []


def landings(log):
    """How many landings there are before each hand-over since the one before."""
    places = [number for number, (what, _) in enumerate(log) if what == "handed"]
    return [sum(what == "landed" for what, _ in log[begin:end]) for begin, end in pairwise([0, *places])]


def test_tokens_are_handed_over_while_the_host_waits(small_model):
    world = Engine(small_model, NEVER)
    world.read(num_requests=1)
    middle = [what for what, _ in world.log][6:-6]
    turn = ["launched", "asked", "handed", "landed"]
    assert middle[middle.index("launched") :][:12] == turn * 3


def test_a_host_that_is_late_keeps_them_for_one_step_more(small_model):
    world = Engine(small_model, ALWAYS)
    world.read(num_requests=1)
    assert ("asked", True) in world.log
    assert max(landings(world.log)) == 3, "those of a step, of the next one, and of the one at whose end they go"
    for what, following in pairwise([one for one in world.log if one[0] != "launched"]):
        assert not (what == ("asked", True) and following[0] == "handed"), "it need not wait there"


@pytest.mark.parametrize("num_requests", [1, 3, 6])
@settings(max_examples=25, deadline=None)
@given(there=st.lists(st.booleans(), max_size=4 * STEPS))
def test_every_token_comes_in_order_and_no_later(small_model, num_requests, there):
    world, as_ever = Engine(small_model, there), Engine(small_model, NEVER)
    assert world.read(num_requests) == as_ever.read(num_requests)
    assert max(landings(world.log)) <= 3 + 1, "a start lands first tokens beside those of a step"


def test_nothing_is_known_of_what_other_pipelines_make():
    step = in_flight.StepInFlight([], None, object())
    assert not step.is_there
