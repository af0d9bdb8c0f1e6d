"""Graphs of decode steps on a GPU: bit for bit the padded step; captures among live sessions, and those that fail."""

import gc
import threading
import warnings

import pytest
import torch

from rosecourse import BEST, EngineConfig, InferenceEngine, SamplingParams, lesson, load_model, random_model
from rosecourse.decode.graphs import CUDAGraph
from rosecourse.decode.pipeline import PinnedSlot
from rosecourse.decode.runner import GraphRunner
from tests.support.graph_runners import PaddedRunner
from tests.support.oracles import prompts_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

LENGTHS = [1, 5, 63, 64, 65, 127, 128, 129]


@pytest.fixture(scope="module")
def exact():
    return load_model(dtype="float32", device="cuda")


def decode(engine, sessions, steps):
    for _ in range(steps):
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))


RUNG = lesson("066")
KINDS = {"graphs": RUNG.after, "padded": RUNG.after.with_(runner=PaddedRunner)}


def decoding_in(engine, lengths, temperatures=(0.0,)):
    """Sessions with their first token, which sample by these temperatures in turns, each with a seed of its own."""
    params = [
        SamplingParams(200, temperatures[n % len(temperatures)], seed=n, stop_on_eos=False) for n in range(len(lengths))
    ]
    sessions = [
        engine.new_session([7 + n] * length, one) for n, (length, one) in enumerate(zip(lengths, params, strict=True))
    ]
    engine.take_tokens(sessions, engine.prefill(sessions))
    return sessions


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.filterwarnings("ignore:graphs of steps that sample")
def test_graph_computes_what_the_padded_step_does_bit_for_bit(sampled):
    """Hazard 31: over buckets that go up and down in mid-stream, a fork and its copy, and rows that are left."""
    found = {}
    for name, parts in KINDS.items():
        engine = InferenceEngine(random_model("gpt2"), EngineConfig(max_batch_size=37, prefix_cache=False), parts)
        lengths = [1, 3, 60, 63, 64, 65, 130, 5, 9, 62, 2, 4, 6, 8, 10, 12, 127]
        sessions = decoding_in(engine, lengths, (0.0, 1.0) if sampled else (0.0,))
        logits = []
        for number, size in enumerate([17, 1, 2, 3, 5, 9, 16, 17, 8, 4, 17, 12, 1, 17]):
            if number == 6:
                engine.free(sessions[0])
                sessions[0] = engine.fork(sessions[6])
            batch = sessions[-size:] if number % 2 else sessions[:size]
            logits.append(engine.decode_step_sessions(batch))
            engine.take_tokens(batch, logits[-1])
        if name == "graphs":
            assert engine.decode_step.runner.graphs.keys() >= {(bucket, False) for bucket in (1, 2, 4, 8, 16, 24, 37)}
        engine.audit(sessions)
        found[name] = logits, [session.token_ids for session in sessions]
    assert found["graphs"][1] == found["padded"][1]
    for one, other in zip(found["graphs"][0], found["padded"][0], strict=True):
        assert torch.equal(one, other)


@pytest.mark.filterwarnings("ignore:graphs of steps that sample")
def test_capture_among_live_sessions_changes_the_spare_block(exact):
    """Hazard 21: warm-up and capture of the graphs that sample come in the middle of requests."""
    engine = InferenceEngine(exact, EngineConfig(max_batch_size=8, prefix_cache=False), RUNG.after)
    sessions = decoding_in(engine, LENGTHS[:3])
    decode(engine, sessions, 3)
    runner, kv = engine.decode_step.runner, engine.kv
    held = [cache[:, : kv.num_blocks].clone() for cache in (kv.keys, kv.values)]
    state = engine.decode_step.rows.state.clone()
    with torch.inference_mode():
        runner._capture(4, True)
    assert (4, True) in runner.graphs
    assert torch.equal(engine.decode_step.rows.state, state)
    for cache, before in zip((kv.keys, kv.values), held, strict=True):
        assert torch.equal(cache[:, : kv.num_blocks].view(torch.int32), before.view(torch.int32))
    assert runner.memory_bytes > 0
    expected = InferenceEngine(exact, EngineConfig(max_batch_size=8, prefix_cache=False), RUNG.before)
    others = decoding_in(expected, LENGTHS[:3])
    decode(expected, others, 8)
    decode(engine, sessions, 5)
    assert [session.token_ids for session in sessions] == [session.token_ids for session in others]


@pytest.mark.filterwarnings("ignore:graphs of steps that sample")
def test_replay_reads_what_sampling_needs_now(exact):
    """Hazard 32: others sit in the rows of the graphs that the first have captured, and ask for something else."""
    made = []
    for parts in (RUNG.before, RUNG.after):
        engine = InferenceEngine(exact, EngineConfig(max_batch_size=11, prefix_cache=False), parts)
        for seed, temperature, top_k, top_p in ((1, 0.2, 2, 0.3), (5, 3.0, 0, 1.0), (9, 3.0, 0, 0.4), (9, 3.0, 3, 1.0)):
            params = SamplingParams(40, temperature, top_k, top_p, seed, stop_on_eos=False)
            sessions = [engine.new_session([7 + n] * length, params) for n, length in enumerate([3, 66, 5])]
            engine.take_tokens(sessions, engine.prefill(sessions))
            decode(engine, sessions, 6)
            made.append([session.token_ids for session in sessions])
            for session in sessions:
                engine.free(session)
    assert made[:4] == made[4:]
    assert len({str(one) for one in made[:4]}) == 4


class Fails(CUDAGraph):
    """Its n-th capture does what no capture may: the host reads a number."""

    left = 0

    def capture(self, work):
        def bad():
            work()
            Fails.left -= 1
            if Fails.left == 0:
                torch.ones(1, device="cuda").item()

        super().capture(bad)


class FailingRunner(GraphRunner):
    def graphs_of(self, device):
        graphs = super().graphs_of(device)
        return lambda: Fails(graphs.pool, graphs.stream)


@pytest.mark.parametrize("nth", [1, 3, 5])
@pytest.mark.filterwarnings("ignore:graphs of steps that sample")
def test_where_a_capture_fails_steps_run_eagerly(exact, nth):
    """Hazard 33: the fifth is the first that samples, in the middle of requests. No block and no token is lost."""
    prompts, params = prompts_of(LENGTHS, exact.shape.vocab_size), SamplingParams(20, 0.8, seed=3, stop_on_eos=False)
    settings = {"max_batch_size": 8, "prefix_cache": False}
    expected = InferenceEngine(exact, EngineConfig(**settings), RUNG.before).generate(prompts, params)
    Fails.left = nth
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine = InferenceEngine(exact, EngineConfig(**settings), RUNG.after.with_(runner=FailingRunner))
        found = engine.generate(prompts, params)
    assert len([one for one in caught if "no graph of" in str(one.message)]) == 1
    assert engine.decode_step.runner.graphs == {}
    assert engine.decode_step.runner.memory_bytes == 0
    assert not torch.cuda.is_current_stream_capturing()
    assert [one.token_ids for one in found] == [one.token_ids for one in expected]
    engine.audit([])


def test_other_threads_may_use_the_device_during_a_capture(exact):
    """A capture is of one thread: another one may allocate and wait as it likes."""
    done, ended = [], threading.Event()

    def work():
        while not ended.is_set():
            done.append(torch.ones(1000, device="cuda").sum().item())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        engine = InferenceEngine(exact, EngineConfig(max_batch_size=24), RUNG.after)
    finally:
        ended.set()
        thread.join()
    assert len(engine.decode_step.runner.graphs) == 6
    assert set(done) == {1000.0}


def test_garbage_breaks_no_capture(monkeypatch):
    """Engines that nobody holds any more have slots that wait for the device when they go: no capture may do that."""
    model = load_model(dtype="float16", device="cuda")
    hidden = type(model).hidden

    def littering(*args):
        for _ in range(3):
            cycle = [PinnedSlot(4, model.device)]
            cycle.append(cycle)
        return hidden(*args)

    monkeypatch.setattr(type(model), "hidden", littering)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine = InferenceEngine(model, EngineConfig(max_batch_size=9, max_seq_len=40), BEST)
    finally:
        gc.set_threshold(*thresholds)
    assert gc.isenabled()
    assert len(engine.decode_step.runner.graphs) == len(engine.decode_step.runner.buckets)
    assert sorted(engine.prompts.graphs) == [64 * n for n in range(1, 7)]
