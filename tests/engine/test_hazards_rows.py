"""Hazards of the rungs from 062 on: one table for all layers, slots from the table, and rows that stay."""

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, KVCacheExhausted, SamplingParams
from tests.support.hazards import BS, RUNGS, Driver, assert_holds_its_own, held
from tests.support.oracles import prompts_of

pytestmark = pytest.mark.grid

NEW = [rung for rung in RUNGS if "062" <= rung < "07"]
each_new_rung = pytest.mark.parametrize("rung", NEW)
each_placing_rung = pytest.mark.parametrize("rung", [rung for rung in NEW if rung >= "063"])


def sampled(seed):
    """Every second request is greedy."""
    return SamplingParams(max_new_tokens=20, temperature=float(seed % 2), top_p=0.9, seed=seed, stop_on_eos=False)


class Play(Driver):
    """Sessions with seeds of their own, each of which must get what it gets alone, whoever else is there."""

    def __init__(self, pair, rung, **config):
        self.hf, self.model = pair
        super().__init__(self.model, rung, **config)
        self.seeds = 0

    def join(self, *lengths):
        sessions = []
        for prompt in prompts_of(list(lengths), 211, seed=self.seeds):
            self.seeds += 1
            sessions.append(self.engine.new_session(prompt, sampled(self.seeds)))
        self.live += sessions
        self.compute(*sessions)
        return sessions

    def compute(self, *sessions):
        """Prefill, and the first token."""
        self.engine.take_tokens(sessions, self.engine.prefill(sessions))
        self.check()

    def preempt(self, session):
        self.engine.free(session)
        self.check()

    def judge(self):
        """Tokens, K and V of all that live are their own."""
        alone = InferenceEngine(self.model, EngineConfig(block_size=BS, max_batch_size=1), RUNGS["035"][0])
        for session in self.live:
            (result,) = alone.generate([session.prompt_ids], session.params)
            assert session.completion_ids == result.token_ids[: len(session.completion_ids)]
            assert len(session.completion_ids) > 3
            assert_holds_its_own(self.hf, self.kv, session)


# -- 24: place ----------------------------------------------------------------------------------------------------


def a_batch_that_needs_blocks(driver):
    """At a block's end, inside a block, and three that share a block: 5 new blocks in one step."""
    _, second, *_ = driver.start_lengths(4, 6, 8, 4, 2)
    driver.fork(second, token_id=7)
    driver.fork(second, token_id=9)
    driver.live = [driver.live[n] for n in (1, 0, 5, 2, 4, 6, 3)]
    return 5


@each_new_rung
def test_a_place_that_finds_no_block_for_one_session_changes_no_other(small_model, rung):
    """Hazard 24: whichever session it is that the blocks end at."""
    driver = Driver(small_model, rung)
    needed = a_batch_that_needs_blocks(driver)
    tables = [session.table for session in driver.live]
    for available in range(needed):
        hog = driver.kv.allocate((driver.kv.num_available() - available) * BS)
        before = driver.snapshot()
        with pytest.raises(KVCacheExhausted, match=rf"{needed} KV blocks needed, {available} of"):
            driver.kv.place(tables)
        assert driver.snapshot() == before
        driver.kv.free(hog)
        driver.check()


@each_new_rung
@pytest.mark.parametrize("number", range(5))
def test_a_step_whose_place_fails_at_any_block_leaves_all_sessions_as_they_were(small_pair, monkeypatch, rung, number):
    """Hazard 24: a failure at block k for every k: those before it have no block that nobody has copied into."""
    hf, model = small_pair
    driver = Driver(model, rung)
    needed = a_batch_that_needs_blocks(driver)
    real, calls = driver.kv.allocate_block, []

    def failing():
        calls.append(1)
        if len(calls) > number:
            raise MemoryError("injected")
        return real()

    before = driver.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr(driver.kv, "allocate_block", failing)
        with pytest.raises(MemoryError, match="injected"):
            driver.engine.decode_step_sessions(driver.live)
    assert driver.snapshot() == before
    driver.check()
    available = driver.kv.num_available()
    driver.step()
    assert driver.kv.num_available() == available - needed
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)


# -- 25: rows -----------------------------------------------------------------------------------------------------


@each_new_rung
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_row_is_taken_over_in_the_step_in_which_its_session_left(small_pair, rung, place):
    """Hazard 25: the new one sits where the old one sat, or the others move up and it sits behind them."""
    play = Play(small_pair, rung)
    batch = play.join(3, 6, 9)
    play.step(*batch)
    for behind in (False, True, False):
        gone = batch.pop(place)
        play.free(gone)
        (new,) = play.join(4)
        batch.insert(len(batch) if behind else place, new)
        play.step(*batch)
    for _ in range(3):
        play.step(*batch)
    play.judge()


@each_new_rung
def test_sessions_change_places(small_pair, rung):
    """Hazard 25: two are swapped, all turn round, some leave and the rest move up; block boundaries in between."""
    play = Play(small_pair, rung)
    a, b, c, d = play.join(3, 6, 9, 4)
    for batch in ([a, b, c, d], [b, a, c, d], [d, c, a, b], [c, b], [b, d, c, a], [a, b, c, d], [d, a, b, c]):
        play.step(*batch)
    play.judge()


@each_new_rung
def test_a_preempted_session_comes_back_to_another_row(small_pair, rung):
    """Hazard 25: with other blocks, among others; its draws go on where they were."""
    play = Play(small_pair, rung)
    a, b, c = play.join(3, 6, 9)
    for _ in range(2):
        play.step(a, b, c)
    play.preempt(b)
    play.step(c, a)
    play.compute(b)
    for batch in ([c, b, a], [b, a, c], [b, c, a]):
        play.step(*batch)
    play.judge()


@each_new_rung
def test_a_session_is_freed_and_prefilled_between_two_steps(small_pair, rung):
    """Hazard 25: it comes back to its own row, of the same batch; only its table says that it is another one."""
    play = Play(small_pair, rung)
    a, b, c = play.join(3, 6, 9)
    for again in (a, b, c):
        play.step(a, b, c)
        play.preempt(again)
        play.join(2)  # takes some of its blocks
        play.compute(again)
    for _ in range(3):
        play.step(a, b, c)
    play.free(*play.live[3:])
    play.judge()


@each_new_rung
def test_a_session_leaves_the_batch_for_a_step_and_comes_back(small_pair, rung):
    """Hazard 25: meanwhile its row is somebody else's, and nobody's."""
    play = Play(small_pair, rung)
    a, b, c, d = play.join(3, 7, 9, 4)
    for batch in ([a, b, c], [a, c], [a, b, c], [a, d, c], [a, b, c, d], [d], [b, a], [a, b, c, d], [c, d]):
        play.step(*batch)
    play.judge()


# -- 26: copies ---------------------------------------------------------------------------------------------------


@each_new_rung
@pytest.mark.parametrize("order", [[0, 1, 2], [1, 0, 2], [2, 1, 0]])
def test_two_forks_and_their_source_write_in_one_step(small_pair, rung, order):
    """Hazard 26: a copy is made before anybody writes, and each goes on with a word of its own."""
    hf, model = small_pair
    driver = Driver(model, rung)
    for length in (5, 6, 7, 8):
        (source,) = driver.start_lengths(length)
        driver.step(source)  # it has a row already, in which a block is replaced when it is not the last to write
        family = [source, driver.fork(source, token_id=7), driver.fork(source, token_id=9)]
        for _ in range(3):
            driver.step(*(family[n] for n in order))
            for session in family:
                assert_holds_its_own(hf, driver.kv, session)
        driver.free(*family)


@each_new_rung
def test_a_fork_of_a_fork_writes_beside_all_its_ancestors(small_pair, rung):
    """Hazard 26: before their first step, and after each one a block later."""
    hf, model = small_pair
    driver = Driver(model, rung, max_batch_size=12)
    (session,) = driver.start_lengths(5, new=12)
    for token_id in (7, 8, 9):
        session = driver.fork(session, token_id=token_id)
    for number in range(4):
        driver.step(*reversed(driver.live))
        driver.fork(driver.live[number], token_id=20 + number)
        driver.fork(driver.live[-1], token_id=30 + number)
        for each in driver.live:
            assert_holds_its_own(hf, driver.kv, each)


@each_placing_rung
def test_the_forward_finds_the_copies_made_and_the_tables_showing_them(small_model, monkeypatch, rung):
    """Hazard 26: what the forward is told is each session's own block, with all that the source held.

    From 066 on it is the runner that is told: a graph calls no forward.
    """
    driver = Driver(small_model, rung)
    (source,) = driver.start_lengths(6, new=12)
    driver.step()
    family = [source, driver.fork(source, token_id=7), driver.fork(source, token_id=9)]
    expected = held(driver.kv, source)
    step, looked = driver.engine.decode_step, []
    name = "runner" if "runner" in step.stages else "forward"
    real = getattr(step, name)

    def looking(inputs, how):
        for b, session in enumerate(family):
            assert inputs.block_tables[:, b, : len(session.table)].tolist() == [list(session.table)] * 3
            assert torch.equal(held(driver.kv, session), expected)
        assert len({session.table[-1] for session in family}) == 3
        looked.append(1)
        return real(inputs, how)

    monkeypatch.setattr(step, name, looking)
    driver.step(*family)
    assert looked == [1]


# -- 27: positions ------------------------------------------------------------------------------------------------


@each_new_rung
def test_the_first_and_the_last_positions_in_one_batch(small_pair, rung):
    """Hazard 27: a token at the second position of all, at both ends of a block, and at the last that there is.

    Position 0 is a prefill's: whoever comes to a decode step has a prompt of one token at least, which is in the cache.
    For the same reason no row has a length of 0. The parts alone are given both in tests/decode and tests/lessons.
    """
    hf, model = small_pair
    longest = 32
    driver = Driver(model, rung, max_seq_len=longest)
    *_, last = driver.start_lengths(1, BS - 1, BS, BS + 1, 2 * BS, longest - 2, new=2)
    driver.engine.decode_step_sessions([last])
    last.token_ids.append(5)  # by hand, so that it has not ended
    assert [s.num_cached_tokens for s in driver.live] == [1, BS - 1, BS, BS + 1, 2 * BS, longest - 1]
    driver.engine.decode_step_sessions(driver.live)
    driver.check()
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)
    assert last.num_cached_tokens == longest


# -- between a step and its tokens --------------------------------------------------------------------------------


@each_new_rung
@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@torch.inference_mode()
def test_tokens_are_those_of_the_logits_that_are_handed_in(small_pair, rung, in_place, temperature):
    """A user changes them between the step and `take_tokens`: the next step goes on from what they say."""
    hf, model = small_pair
    driver = Driver(model, rung)
    params = SamplingParams(max_new_tokens=12, temperature=temperature, stop_on_eos=False)
    driver.live = [driver.engine.new_session(prompt, params) for prompt in prompts_of([3, 4, 6], 211)]
    driver.engine.take_tokens(driver.live, driver.engine.prefill(driver.live))
    for number in range(4):
        logits = driver.engine.decode_step_sessions(driver.live)
        wanted = [50 + number, 60 + number, 70 + number]
        changed = logits if in_place else logits.clone()
        changed[range(3), wanted] = 1e6
        assert driver.engine.take_tokens(driver.live, changed) == wanted
        assert [session.token_ids[-1] for session in driver.live] == wanted
        driver.check()
    driver.step()
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)


@each_new_rung
def test_tokens_are_taken_by_some_and_then_by_the_others(small_pair, rung):
    """In any order, in parts; a step over those that have theirs may come in between."""
    play = Play(small_pair, rung)
    a, b, c = play.join(3, 6, 9)
    for parts in ([[b], [c, a]], [[c, b, a]], [[a, b, c]], [[a, b], [c]], [[c], [a], [b]]):
        logits = dict(zip((a, b, c), play.engine.decode_step_sessions([a, b, c]), strict=True))
        for part in parts:
            play.engine.take_tokens(part, torch.stack([logits[session] for session in part]))
            play.check()
    logits = dict(zip((a, b, c), play.engine.decode_step_sessions([a, b, c]), strict=True))
    play.engine.take_tokens([b], logits[b][None])
    play.step(b)
    play.engine.take_tokens([c, a], torch.stack([logits[c], logits[a]]))
    play.step(a, b, c)
    play.judge()


@each_new_rung
def test_a_token_that_is_changed_by_hand_is_the_one_that_the_next_step_reads(small_pair, rung):
    hf, model = small_pair
    driver = Driver(model, rung)
    driver.start_lengths(3, 6, 9, new=12)
    for number in range(4):
        driver.step()
        driver.live[number % 3].token_ids[-1] = 100 + number
        tokens = driver.engine.take_tokens(driver.live, driver.engine.decode_step_sessions(driver.live))
        tokens[:] = [7, 7, 7]  # the caller's own list
        for session in driver.live:
            session.token_ids[-1] = 7
    driver.step()
    for session in driver.live:
        assert_holds_its_own(hf, driver.kv, session)
