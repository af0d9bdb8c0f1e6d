"""The runner: eager, padded and as graphs make the same tokens; what a graph would freeze; captures that fail."""

import random
import warnings

import pytest
import torch

from rosecourse import EngineConfig, InferenceEngine, KVCacheExhausted, LogitsError, SamplingParams, lesson
from rosecourse.decode.cpu_graph import CPUGraph
from rosecourse.decode.forward import FixedWidthForward
from rosecourse.decode.rows import View
from rosecourse.decode.runner import CPUGraphRunner, EagerRunner, GraphRunner, PaddedRunner, buckets_up_to
from tests.support.hazards import pool_bytes
from tests.support.oracles import prompts_of

PARTS = lesson("066").after
FIXED = PARTS.with_(forward=FixedWidthForward)  # what a graph of a CPU can record
KINDS = {
    "065": lesson("065").after,
    "eager": PARTS.with_(runner=EagerRunner),
    "padded": PARTS.with_(runner=PaddedRunner),
    "graphs": FIXED.with_(runner=CPUGraphRunner),
}
CONFIG = EngineConfig(block_size=4, max_batch_size=11, max_seq_len=24, num_blocks=60, prefix_cache=False)


def engine_of(model, parts, **settings):
    return InferenceEngine(model, EngineConfig(**{**CONFIG.__dict__, **settings}), parts)


def sessions_of(engine, lengths, **params):
    sessions = [
        engine.new_session([7 + n] * length, SamplingParams(max_new_tokens=12, stop_on_eos=False, seed=n, **params))
        for n, length in enumerate(lengths)
    ]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


def step(engine, sessions):
    return engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


def random_traffic(engine, seed, sampled):
    """Sessions join, leave, fork and change places, so that buckets go up and down; returns all tokens."""
    rng, live, done = random.Random(seed), [], []
    for n in range(24):
        if rng.random() < 0.5 and len(live) < 9:
            params = SamplingParams(
                max_new_tokens=rng.randint(2, 9),
                stop_on_eos=False,
                temperature=0.9 if sampled and rng.random() < 0.5 else 0.0,
                top_k=rng.choice([0, 5]),
                top_p=rng.choice([1.0, 0.8]),
                seed=n,
            )
            live.append(engine.new_session([rng.randrange(50) for _ in range(rng.randint(1, 9))], params))
            engine.take_tokens(live[-1:], engine.prefill(live[-1:]))
        if live and rng.random() < 0.2 and len(live) < 11:
            live.append(engine.fork(rng.choice(live)))
        rng.shuffle(live)
        live = [session for session in live if not session.finished]
        if live:
            step(engine, live)
        for session in [session for session in live if session.finished]:
            engine.free(session)
            live.remove(session)
            done.append(session)
        engine.audit(live)
    return [session.completion_ids for session in [*done, *live]]


def test_each_batch_size_has_a_bucket_that_is_not_much_larger():
    assert buckets_up_to(1) == (1,)
    assert buckets_up_to(3) == (1, 2, 3)
    assert buckets_up_to(16) == (1, 2, 4, 8, 16)
    assert buckets_up_to(37) == (1, 2, 4, 8, 16, 24, 32, 37)
    for most in range(1, 140):
        buckets = buckets_up_to(most)
        assert buckets[-1] == most
        assert list(buckets) == sorted(set(buckets))
        for size in range(1, most + 1):
            assert min(bucket for bucket in buckets if bucket >= size) < max(2 * size, size + 8)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_all_make_the_tokens_of_the_lesson_before(small_model, kind, seed, sampled):
    found, expected = (random_traffic(engine_of(small_model, KINDS[name]), seed, sampled) for name in (kind, "065"))
    assert found == expected
    assert len(expected) > 5


def test_whole_requests_make_the_same_tokens(model):
    prompts = prompts_of([1, 3, 5, 8, 9, 12, 2, 4, 6, 7, 10, 11, 3], model.shape.vocab_size)
    params = [SamplingParams(max_new_tokens=8, temperature=0.8 * (n % 2), seed=n) for n in range(len(prompts))]
    made = {name: engine_of(model, parts).generate(prompts, params) for name, parts in KINDS.items()}
    ids = {name: [one.token_ids for one in generations] for name, generations in made.items()}
    assert ids["eager"] == ids["padded"] == ids["graphs"] == ids["065"]


@pytest.mark.parametrize("lengths", [[5], [3, 8, 4], [1, 2, 3, 4, 5, 6, 7, 8, 9]])
def test_a_graph_computes_what_the_padded_step_does_bit_for_bit(small_model, lengths):
    engines = [engine_of(small_model, FIXED.with_(runner=kind)) for kind in (PaddedRunner, CPUGraphRunner)]
    batches = [sessions_of(engine, lengths) for engine in engines]
    for _ in range(6):
        eager, graph = (engine.decode_step_sessions(batch) for engine, batch in zip(engines, batches, strict=True))
        assert torch.equal(eager, graph)
        for engine, batch, logits in zip(engines, batches, (eager, graph), strict=True):
            engine.take_tokens(batch, logits)


# -- pads -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["padded", "graphs"])
def test_pads_write_into_the_spare_block_and_nowhere_else(small_model, kind):
    """Three sessions in a bucket of 4, after nine were there: their rows hold what the others have left."""
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    for _ in range(3):
        step(engine, sessions)
    for session in sessions[3:]:
        engine.free(session)
    live, kv = sessions[:3], engine.kv
    kv.keys.fill_(float("nan"))  # nobody reads a slot again that is not written here
    was = [kv.keys.clone(), kv.values.clone()]
    slots = {(s.table[s.num_cached_tokens // 4], s.num_cached_tokens % 4) for s in live if s.num_cached_tokens % 4}
    assert slots
    engine.decode_step_sessions(live)
    written = {
        (block, slot)
        for before, now in zip(was, (kv.keys, kv.values), strict=True)
        for block, slot in ((before != now) & ~now.isnan()).any(dim=(0, 2, 4)).nonzero().tolist()
    }
    new = {(s.table[-1], (s.num_cached_tokens - 1) % 4) for s in live}
    assert written - new <= {(kv.num_blocks, 0)}
    rows = engine.decode_step.rows
    assert rows.fields[-1].tolist() == [1] * 3 + [0] * 8  # who is live
    assert rows.view(11).inputs.context_lens[3:].tolist() == [0] * 8
    assert (rows.block_tables[3:, 0] == kv.num_blocks).all()


def test_a_padded_step_is_no_wider_than_the_cache(small_model):
    """Contexts may be far longer than all blocks together; torch's sparse product is wrong for such a width."""
    made = []
    for parts in KINDS.values():
        engine = engine_of(small_model, parts, num_blocks=5, max_seq_len=96)
        sessions = sessions_of(engine, [3])
        for _ in range(5):
            step(engine, sessions)
        made.append(sessions[0].completion_ids)
    assert made[1:] == made[:1] * 3


def test_no_session_can_hold_the_spare_block(small_model):
    engine = engine_of(small_model, PARTS, num_blocks=3)
    assert engine.kv.keys.shape[1] == 4
    assert sorted(engine.kv.allocate_block() for _ in range(3)) == [0, 1, 2]
    with pytest.raises(KVCacheExhausted):
        engine.kv.allocate_block()


# -- capture ----------------------------------------------------------------------------------------------------------


def test_a_capture_among_live_sessions_changes_nothing_but_the_spare_block(small_model):
    engine = engine_of(small_model, KINDS["graphs"])
    sessions = sessions_of(engine, [3, 8, 5])
    step(engine, sessions)
    runner, rows, spare = engine.decode_step.runner, engine.decode_step.rows, engine.kv.num_blocks
    greedy = set(runner.graphs)
    engine.kv.keys[:, spare] = engine.kv.values[:, spare] = 0
    was = pool_bytes(engine.kv), rows.state.tolist()
    with torch.inference_mode():
        runner._capture(4, True)
    engine.kv.keys[:, spare] = engine.kv.values[:, spare] = 0
    assert (pool_bytes(engine.kv), rows.state.tolist()) == was
    assert set(runner.graphs) - greedy == {(4, True)}


def test_graphs_that_sample_are_captured_when_they_are_needed(small_model):
    engine = engine_of(small_model, KINDS["graphs"])
    graphs = engine.decode_step.runner.graphs
    assert set(graphs) == {(bucket, False) for bucket in buckets_up_to(11)}
    sampled = sessions_of(engine, [3, 4, 5], temperature=1.0)
    with pytest.warns(UserWarning, match="^graphs of steps that sample are captured as they are needed"):
        step(engine, sampled)
    assert set(graphs) - {(bucket, False) for bucket in buckets_up_to(11)} == {(4, True)}


def test_the_late_graphs_are_told_of_once_and_in_no_eager_engine(small_model):
    for kind in ("eager", "padded", "graphs"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            engine = engine_of(small_model, KINDS[kind])
            for lengths in ([3], [3, 4], [3, 4, 5, 6]):
                step(engine, sessions_of(engine, lengths))
            assert caught == []
            for lengths in ([3], [3, 4], [3, 4, 5, 6]):
                step(engine, sessions_of(engine, lengths, temperature=1.0))
        assert len(caught) == (kind == "graphs")


def test_the_memory_that_captures_take_is_summed_up(small_model, monkeypatch):
    """Of a device that has 10 bytes fewer whenever it is asked, and after a capture that fails holds none."""
    assert engine_of(small_model, KINDS["graphs"]).decode_step.runner.memory_bytes == 0  # a CPU's are not told apart
    left = iter(range(10_000, 0, -10))
    monkeypatch.setattr("rosecourse.decode.runner.free_memory", lambda device: next(left))
    engine = engine_of(small_model, KINDS["graphs"])
    captured = len(buckets_up_to(11))
    assert engine.decode_step.runner.memory_bytes == 10 * captured
    step(engine, sessions_of(engine, [3], temperature=1.0))
    assert engine.decode_step.runner.memory_bytes == 10 * (captured + 1)
    Fails.left = 3
    with pytest.warns(UserWarning, match="no graph of"):
        engine = engine_of(small_model, FIXED.with_(runner=FailingRunner))
    assert engine.decode_step.runner.memory_bytes == 0


def test_a_cpu_has_no_graphs_of_its_own(small_model):
    runner = engine_of(small_model, PARTS).decode_step.runner
    assert type(runner) is GraphRunner
    assert runner.graphs == {}


class Fails(CPUGraph):
    """Its n-th capture fails."""

    left = 0

    def capture(self, work):
        Fails.left -= 1
        if Fails.left == 0:
            raise RuntimeError("CUDA error: out of memory\nand many lines more")
        super().capture(work)


class FailingRunner(CPUGraphRunner):
    def graphs_of(self, device):
        return Fails


@pytest.mark.parametrize("nth", [1, 3, 6])
def test_where_a_capture_fails_steps_run_eagerly_and_one_line_says_so(small_model, nth):
    """The sixth is the first that samples, in the middle of a request."""
    Fails.left = nth
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = engine_of(small_model, FIXED.with_(runner=FailingRunner))
        found = random_traffic(engine, 1, True)
    said = [str(one.message) for one in caught if "captured as they are needed" not in str(one.message)]
    assert len(said) == 1
    assert said[0].startswith("no graph of ")
    assert said[0].endswith("so decode steps run eagerly: CUDA error: out of memory")
    assert engine.decode_step.runner.graphs == {}
    assert found == random_traffic(engine_of(small_model, KINDS["065"]), 1, True)


def test_an_interrupt_during_a_capture_ends_it(small_model, monkeypatch):
    def interrupted(graph, work):
        raise KeyboardInterrupt

    monkeypatch.setattr(CPUGraph, "capture", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine_of(small_model, KINDS["graphs"])


# -- what may not be frozen -------------------------------------------------------------------------------------------


def frozen(view, name):
    """The same rows, with one column as it was at the capture."""
    inputs, asked = view.inputs, view.asked
    if name in ("token_ids", "context_lens", "block_tables"):
        inputs = type(inputs)(**{**inputs.__dict__, name: getattr(inputs, name).clone()})
    elif name == "live":
        return View(inputs, view.live.clone(), asked)
    else:
        asked = asked._replace(**{name: getattr(asked, name).clone()})
    return View(inputs, view.live, asked)


class Freezing(CPUGraphRunner):
    column = ""

    def _capture(self, bucket, sampled):
        rows = self.work.rows
        view = rows.view(bucket)
        rows.views[bucket] = frozen(view, self.column) if self.column else view
        try:
            super()._capture(bucket, sampled)
        finally:
            rows.views[bucket] = view


COLUMNS = ("token_ids", "context_lens", "block_tables", "live", "temperature", "top_k", "top_p", "keys")


@pytest.mark.parametrize("column", ["", *COLUMNS])
def test_a_column_that_is_frozen_at_the_capture_makes_other_tokens(small_model, column):
    """The capture comes with one set of sessions, the tokens that are compared with others in the same rows."""

    def tokens(parts):
        engine = engine_of(small_model, parts)
        made = []
        for seed, temperature, top_k, top_p in ((1, 0.2, 2, 0.3), (5, 3.0, 0, 1.0), (9, 3.0, 0, 0.4), (9, 3.0, 3, 1.0)):
            params = SamplingParams(12, temperature, top_k, top_p, seed, stop_on_eos=False)
            sessions = [engine.new_session([seed + n] * (3 + n), params) for n in range(4 if seed == 5 else 3)]
            engine.take_tokens(sessions, engine.prefill(sessions))
            for _ in range(8):
                step(engine, sessions)
            made.append([session.completion_ids for session in sessions])
            for session in sessions:
                engine.free(session)
        return made

    runner = type("Runner", (Freezing,), {"column": column})
    try:
        found = tokens(FIXED.with_(runner=runner))
    except (RuntimeError, LogitsError):  # a position past its table, or a block that nobody has filled
        assert column in ("context_lens", "block_tables")
    else:
        assert (found == tokens(KINDS["065"])) is (column == "")


@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_the_cache_and_the_rows_stay_where_they_are(small_model, kind):
    """A graph has recorded their addresses: nothing that happens to an engine may make them anew."""
    engine = engine_of(small_model, KINDS[kind])
    rows, kv, runner = engine.decode_step.rows, engine.kv, engine.decode_step.runner

    def places():
        views = [tensor for size in buckets_up_to(11) for tensor in tensors_of(rows.view(size))]
        kept = [runner.logits, runner.tokens] if kind == "graphs" else []
        each = [kv.keys, kv.values, *kv.k_layers, *kv.v_layers, rows.state, *views, *kept]
        return [(tensor.data_ptr(), tensor.shape, tensor.stride()) for tensor in each]

    before = places()
    random_traffic(engine, 1, True)
    rows.forget()
    with rows.all_pads():
        assert places() == before
    assert places() == before


def tensors_of(view):
    inputs = view.inputs
    return [inputs.token_ids, inputs.context_lens, inputs.block_tables, view.live, *view.asked]


# -- what the host reads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_the_logits_of_a_step_outlive_the_next(small_model, kind):
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [3, 4])
    first = engine.decode_step_sessions(sessions)
    was = first.clone()
    engine.take_tokens(sessions, first)
    step(engine, sessions)
    assert torch.equal(first, was)


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_tokens_that_the_device_has_chosen_are_neither_chosen_nor_sent_again(small_model, monkeypatch, kind):
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [5, 5, 5], temperature=0.5)
    step(engine, sessions)  # sends the rows
    uploads = []
    monkeypatch.setattr(engine.decode_step.rows, "_upload", uploads.append)
    monkeypatch.setattr("rosecourse.decode.step.next_tokens", None)
    for _ in range(2):  # at positions 6 and 7 of blocks of 4
        step(engine, sessions)
    assert uploads == []


@pytest.mark.parametrize("change", ["in place", "in inference mode", "a copy"])
@pytest.mark.parametrize("kind", ["eager", "graphs"])
def test_tokens_follow_logits_that_the_caller_has_changed(small_model, kind, change):
    engine, other = (engine_of(small_model, KINDS[name]) for name in (kind, "065"))
    made = []
    for one in (engine, other):
        sessions = sessions_of(one, [3, 4])
        for n in range(4):
            logits = one.decode_step_sessions(sessions)
            if n == 1:
                if change == "a copy" or one is other:
                    logits = logits.clone()
                with torch.inference_mode(change == "in inference mode" or one is other):
                    logits[0, 17] = 1e4
            one.take_tokens(sessions, logits)
        made.append([session.completion_ids for session in sessions])
    assert made[0] == made[1]
    assert made[0][0][2] == 17


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_chosen_once_and_a_step_inside_a_block_uploads_nothing(small_model, kind, temperature, monkeypatch):
    """Seen without a counter: what counts dispatched operations changes the versions of tensors."""
    engine, uploads = engine_of(small_model, KINDS[kind]), []
    sessions = sessions_of(engine, [4, 4], temperature=temperature)
    step(engine, sessions)
    monkeypatch.setattr(engine.decode_step.rows, "_upload", uploads.append)
    monkeypatch.setattr("rosecourse.decode.step.next_tokens", None)
    for _ in range(2):
        step(engine, sessions)
        assert engine.decode_step.rows.tokens == [session.token_ids[-1] for session in sessions]
    assert uploads == []


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_a_row_of_nan_is_reported_and_the_others_go_on(small_model, kind):
    engine = engine_of(small_model, KINDS[kind])
    sessions = sessions_of(engine, [3, 6, 5])
    for block in sessions[1].table:
        engine.kv.keys[:, block] = float("nan")
    logits = engine.decode_step_sessions(sessions)
    with pytest.raises(LogitsError) as caught:
        engine.take_tokens(sessions, logits)
    assert caught.value.rows == [1]
    engine.free(sessions[1])
    rest = [sessions[0], sessions[2]]
    engine.take_tokens(rest, logits[[0, 2]])
    for _ in range(5):
        step(engine, rest)
    undisturbed = engine_of(small_model, KINDS["065"])
    expected = sessions_of(undisturbed, [3, 6, 5])
    for _ in range(6):
        step(undisturbed, expected)
    assert [s.completion_ids for s in rest] == [expected[0].completion_ids, expected[2].completion_ids]


@pytest.mark.parametrize("kind", ["eager", "padded", "graphs"])
def test_tokens_that_nobody_has_read_are_not_the_next_inputs(small_model, kind):
    """The caller gives the sessions words of its own, as speculative or constrained decoding would."""
    engine, other = (engine_of(small_model, KINDS[name]) for name in (kind, "065"))
    made = []
    for one in (engine, other):
        sessions = sessions_of(one, [3, 4])
        one.decode_step_sessions(sessions)
        for session in sessions:
            session.token_ids.append(21)
        for _ in range(4):
            step(one, sessions)
        made.append([session.completion_ids for session in sessions])
    assert made[0] == made[1]


# -- steps that are stopped -------------------------------------------------------------------------------------------


class Stopped(Exception):
    """What stops a step."""


def stop_at(engine, where, error, monkeypatch):
    """Let the next step of an engine end with an error, before or behind some of its work."""

    def stop(*args):
        raise error

    def stop_late(*args):
        real(*args)
        raise error

    owner, name = {
        "place": (engine.decode_step, "place"),
        "plan": (engine.decode_step, "plan"),
        "forward": (engine.decode_step.runner.work, "forward"),
        "advance": (engine.decode_step.rows, "advance"),
        "chosen": (engine.decode_step.rows, "chosen"),
        "runner": (engine.decode_step, "runner"),
        "unread": (engine.decode_step.rows, "unread"),
    }[where.removeprefix("after ")]
    real = getattr(owner, name)
    monkeypatch.setattr(owner, name, stop_late if where.startswith("after ") else stop)


WHERE = ["place", "plan", "after plan", "runner", "after runner", "unread"]
INSIDE = ["forward", "after forward", "advance", "after advance", "chosen", "after chosen"]  # of a run that is eager


@pytest.mark.parametrize(
    ("kind", "where"), [*(("graphs", w) for w in WHERE), *(("eager", w) for w in [*WHERE, *INSIDE])]
)
@pytest.mark.parametrize("error", [Stopped, KeyboardInterrupt])
def test_the_step_after_one_that_was_stopped_is_right(small_model, monkeypatch, kind, where, error):
    """Sessions change places and another joins. Wherever it stopped, the next step uploads all that it needs."""
    made = []
    for disturbed in (False, True):
        engine = engine_of(small_model, KINDS[kind])
        sessions = sessions_of(engine, [3, 4, 6], temperature=0.7)
        for _ in range(3):
            step(engine, sessions[:2])
        sessions.reverse()
        if disturbed:
            with monkeypatch.context() as patch:
                stop_at(engine, where, error, patch)
                with pytest.raises(error):
                    engine.decode_step_sessions(sessions)
            engine.audit(sessions)
        for _ in range(3):
            step(engine, sessions)
        made.append([session.token_ids for session in sessions])
    assert made[0] == made[1]
