"""First tokens that stay on the device: each session's first decode step takes its token from there.

Most of it runs over two devices that the host runs ahead of; see `tests/support/late_device.py`.
"""

import random

import pytest

from rosecourse import BEST, RequestError, SamplingParams
from rosecourse.decode.rows import FIELDS, TOKEN
from rosecourse.errors import RosecourseError
from tests.support.late_device import assert_nothing_in_flight, forgive
from tests.support.pipelines import BEFORE, PROMPTS, Run, SickModel, alone, asks, make_engine, one_behind, told_alone

LONG = SamplingParams(20, stop_on_eos=False)


def sampled(number):
    return SamplingParams(20, stop_on_eos=False, temperature=1.0, seed=number)


def prefilled(engine, *numbers, params=None):
    """Sessions, and logits for their first tokens. Every second one samples."""
    sessions = [engine.new_session(PROMPTS[n], params or (sampled(n) if n % 2 else LONG)) for n in numbers]
    return sessions, engine.prefill(sessions)


def begun(engine, *numbers, params=None):
    """Sessions with a first token that the host has not read."""
    sessions, logits = prefilled(engine, *numbers, params=params)
    assert engine.begin(sessions, logits) == ([], [])
    assert engine.num_in_flight > 0
    assert not any(session.completion_ids for session in sessions)
    return sessions


def assert_as_alone(sessions, *lengths):
    """Each has so many tokens, those that it would have by itself."""
    for session in sessions:
        assert session.completion_ids == told_alone(session)[0][: len(session.completion_ids)]
    if lengths:
        assert [len(session.completion_ids) for session in sessions] == list(lengths)


def watched(engine, monkeypatch):
    """Addresses that plans upload, a list for each plan that does."""
    rows, uploads = engine.decode_step.rows, []
    upload = rows._upload
    monkeypatch.setattr(rows, "_upload", lambda changes: (uploads.append(list(changes)), upload(changes))[1])
    return uploads


# -- from the prefill to the first step -----------------------------------------------------------------------------


@one_behind
def test_the_first_step_takes_the_tokens_from_the_device(parts, monkeypatch):
    """Greedy and sampled ones; the host has read none of them, and uploads none."""
    engine = make_engine(parts)
    uploads = watched(engine, monkeypatch)
    sessions = begun(engine, 0, 1, 2, 3)
    engine.launch(sessions)
    tokens = range(TOKEN * 4, TOKEN * 4 + 4)
    assert [len(addresses) >= 4 * FIELDS for addresses in uploads] == [True]
    assert not set(uploads[0]) & set(tokens)
    landed = engine.land()
    assert [session for session, _ in landed.new_tokens] == sessions
    assert_as_alone(sessions, 1, 1, 1, 1)
    engine.launch(sessions)
    engine.settle()
    assert_as_alone(sessions, 3, 3, 3, 3)
    assert_nothing_in_flight(engine)


@one_behind
def test_prefills_in_a_row(parts):
    """As many as may be in flight; a further one is refused, and begins when one has landed."""
    engine = make_engine(parts)
    first, second = begun(engine, 0), begun(engine, 1, 3)
    third, logits = prefilled(engine, 2)
    with pytest.raises(RosecourseError, match="land a step first"):
        engine.begin(third, logits)
    with pytest.raises(RosecourseError, match="land a step first"):
        engine.launch(second)
    assert engine.num_in_flight == 2
    assert [session for session, _ in engine.land().new_tokens] == first
    engine.begin(third, logits)
    assert [session for session, _ in engine.land().new_tokens] == second
    engine.launch([*third, *second, *first])
    engine.settle()
    assert_as_alone([*first, *second, *third], 2, 2, 2, 2)
    assert_nothing_in_flight(engine)


@one_behind
def test_a_session_begins_once(parts):
    engine = make_engine(parts)
    sessions, logits = prefilled(engine, 0, 1)
    engine.begin(sessions, logits)
    with pytest.raises(RequestError):
        engine.begin(sessions, logits)
    engine.launch(sessions)
    engine.settle()
    assert_as_alone(sessions, 2, 2)


@pytest.mark.parametrize("parts", [BEST, BEFORE], ids=["best", "before"])
def test_a_device_that_the_host_does_not_run_ahead_of(parts):
    """On a CPU: whatever a step has begun has landed when it ends."""
    run = Run(make_engine(parts))
    run.submit_all()
    while run.scheduler.has_work:
        run.step()
        assert run.engine.num_in_flight == 0
        assert all(session.completion_ids for session in run.scheduler.running)
    run.finish()
    assert run.told() == [told_alone(session) for session in run.samples]


# -- NaN --------------------------------------------------------------------------------------------------------------


@one_behind
def test_a_first_token_that_cannot_be_chosen_harms_nobody(parts):
    """The step with it is in flight when the host hears of it; what that makes of the session is dropped."""

    class Vocabulary(SickModel):
        def hidden(self, token_ids, positions, attend):
            assert int(token_ids.min()) >= 0, "not a token"
            return super().hidden(token_ids, positions, attend)

    model = Vocabulary()
    model.sick = {(PROMPTS[2][-1], len(PROMPTS[2]) - 1)}
    engine = make_engine(parts, model)
    sessions = a, bad, b = begun(engine, 0, 2, 3)
    engine.launch(sessions)
    landed = engine.land()
    assert (landed.without, [session for session, _ in landed.new_tokens]) == ([bad], [a, b])
    bad.finish_reason = "error"
    engine.launch([a, b])
    engine.settle()
    assert_as_alone([a, b], 3, 3)
    assert bad.token_ids == PROMPTS[2]
    engine.free(bad)
    again = engine.new_session([*PROMPTS[2], 9], LONG)
    engine.reserve(again)
    assert again.num_cached_tokens == 0, "a prefix of NaN was found"
    assert_nothing_in_flight(engine)


# -- sessions that go -------------------------------------------------------------------------------------------------


@one_behind
@pytest.mark.parametrize("landed", [False, True])
def test_a_session_is_freed_before_it_is_seated(parts, landed):
    """Its place is empty, and it may come back: with its first token, which it keeps."""
    engine = make_engine(parts)
    a, b, c = begun(engine, 0, 1, 2)
    if landed:
        engine.land()
    engine.free(b)
    assert engine.num_in_flight == 0, "a step wrote to blocks that were given back"
    engine.launch([a, c])
    engine.land()
    assert engine.begin([b], engine.prefill([b])) == ([], [])
    engine.launch([c, b])
    engine.settle()
    assert_as_alone([a, b, c], 2, 3, 3)
    assert_nothing_in_flight(engine)


@one_behind
@pytest.mark.parametrize("kind", [KeyboardInterrupt, ZeroDivisionError])
def test_a_launch_that_fails_loses_no_first_token(parts, kind, monkeypatch):
    """Nobody knows what is on the device then; the tokens in flight are landed, and uploaded by the next step."""
    engine = make_engine(parts)
    sessions = begun(engine, 0, 1, 2)

    def fails(*_):
        raise kind("planted")

    with monkeypatch.context() as patch:
        patch.setattr(engine.decode_step, "runner", fails)
        with pytest.raises(kind):
            engine.launch(sessions)
    forgive(engine)
    assert engine.num_in_flight == 0
    engine.launch(sessions)
    engine.settle()
    assert_as_alone(sessions, 2, 2, 2)
    assert_nothing_in_flight(engine)


# -- schedulers -------------------------------------------------------------------------------------------------------


@one_behind
@pytest.mark.parametrize(
    ("settings", "stop"), [({}, True), ({"max_batch_size": 2}, False), ({"prefill_max_batch_size": 1}, True)], ids=str
)
def test_requests_of_a_scheduler_begin_with_their_own_tokens(parts, settings, stop):
    """With requests of one token, and those whose first token ends the text."""
    run = Run(make_engine(parts), **settings)
    run.submit_all(params=asks(stop=stop))
    run.finish()
    assert run.told() == [told_alone(session) for session in run.samples]


@one_behind
@pytest.mark.parametrize("n", [3, 9])
def test_forks_that_wait_begin_with_their_own_tokens(parts, n):
    """Samples of one prompt for which there is no place: their first tokens are there long before their rows."""
    run = Run(make_engine(parts))
    sessions = [run.submit(PROMPTS[number], sampled(number), n) for number in (3, 0, 5)]
    run.finish()
    late = [s.times.tokens[1] > sessions[0].times.tokens[-1] > s.times.tokens[0] for s in sessions[0].forks]
    assert sum(late) == max(0, n - 4), "they have got places at once"
    assert [len(session.samples) for session in sessions] == [n] * 3
    assert run.told() == [alone(tuple(sample.prompt_ids), sample.params) for sample in run.samples]


@one_behind
@pytest.mark.parametrize("seed", range(15))
def test_any_prefills_and_steps_may_follow_each_other(parts, seed):
    """Prefills, steps over any sessions, landings, forks, and sessions that are freed and come back, in any order."""
    draw = random.Random(seed)
    engine = make_engine(parts, num_blocks=400)
    sessions = []

    def begin():
        numbers = [draw.randrange(len(PROMPTS)) for _ in range(draw.randint(1, 3))]
        sessions.extend(begun(engine, *numbers))

    def step():
        ready = [s for s in sessions if s.num_cached_tokens < len(s.prompt_ids) + 17]
        if ready:
            engine.launch(draw.sample(ready, draw.randint(1, min(4, len(ready)))))

    def come_back():
        session = draw.choice(sessions)
        engine.free(session)
        if engine.num_in_flight < 2:
            engine.begin([session], engine.prefill([session]))

    def fork():
        sessions.append(engine.fork(draw.choice(sessions)))

    begin()
    for _ in range(40):
        if engine.num_in_flight == 2 or (engine.num_in_flight and draw.random() < 0.15):
            engine.land()
        draw.choice([begin, step, step, step, step, come_back, fork])()
    engine.settle()
    assert_as_alone(sessions)
    engine.audit(sessions)
    assert_nothing_in_flight(engine)
