"""What the tests of the hazards share: engines of every rung, driven with the invariants checked after each step."""

import torch

from rosecourse import LESSONS, EngineConfig, InferenceEngine, SamplingParams, lesson
from rosecourse.decode.rows import FIELDS, UNKNOWN, sampling_fields
from rosecourse.lab.checking.cpu_runners import FixedWidthForward
from rosecourse.lessons.dense import DecodeForward as DenseForward
from tests.support.fewer_kernels import INTERPRETED, PADDED
from tests.support.graph_runners import CPUGraphRunner, PaddedRunner
from tests.support.layouts import layout_of
from tests.support.oracles import prompts_of

# Parts, and from how many sessions on K and V are appended by a kernel.
RUNGS = {rung.number: (rung.after, 128) for rung in LESSONS} | {
    **{f"{number}-triton": (lesson(number).after, 1) for number in ("061", "062", "065")},
    "066-padded": (lesson("066").after.with_(runner=PaddedRunner), 128),
    "066-graphs": (lesson("066").after.with_(forward=FixedWidthForward, runner=CPUGraphRunner), 128),
    "dense": (lesson("061").after.with_(forward=DenseForward), 128),
}
INTERPRETED_RUNGS = (
    {} if torch.cuda.is_available() else {"069-kernels": (INTERPRETED, 128), "069-padded": (PADDED, 128)}
)
BS = 4


class Driver:
    """An engine of a rung and its live sessions; after every call the books and the block tables are checked."""

    def __init__(self, model, rung, **config):
        parts, min_batch = (RUNGS | INTERPRETED_RUNGS)[rung]
        settings = {"block_size": BS, "max_batch_size": 8, "prefix_cache": False} | config
        self.engine = InferenceEngine(model, EngineConfig(triton_kv_append_min_batch=min_batch, **settings), parts)
        self.kv = self.engine.kv
        self.layout = layout_of(self.kv)
        self.live = []
        for cache in (*self.kv.k_layers, *self.kv.v_layers):
            cache.fill_(float("nan"))  # whoever reads what nobody wrote shall be seen

    def session(self, prompt, new=6):
        return self.engine.new_session(prompt, SamplingParams(max_new_tokens=new, stop_on_eos=False))

    def start(self, *prompts, new=6):
        """Prefilled sessions with their first token."""
        sessions = [self.session(prompt, new) for prompt in prompts]
        self.engine.take_tokens(sessions, self.engine.prefill(sessions))
        self.live += sessions
        self.check()
        return sessions

    def start_lengths(self, *lengths, new=6):
        return self.start(*prompts_of(list(lengths), 211), new=new)

    def step(self, *sessions):
        """One decode step, of all live sessions unless told of which; returns its logits."""
        sessions = list(sessions or self.live)
        logits = self.engine.decode_step_sessions(sessions)
        self.engine.take_tokens(sessions, logits)
        self.check()
        return logits

    def fork(self, session, token_id=None):
        """A sibling, which may go on with another word."""
        self.live.append(self.engine.fork(session))
        if token_id is not None:
            self.live[-1].token_ids[-1] = token_id
        self.check()
        return self.live[-1]

    def free(self, session):
        self.engine.free(session)
        self.live.remove(session)
        self.check()

    def check(self):
        check(self.engine, self.live)

    def snapshot(self):
        """All that a call that fails must leave alone: the books, the sessions and every byte of the pool."""
        books = self.layout.books()
        sessions = [(s.token_ids, s.block_ids_per_layer, s.num_cached_tokens, s.finish_reason) for s in self.live]
        return repr((books, sessions)), pool_bytes(self.kv)


@torch.inference_mode()
def check(engine, sessions):
    """The books are right, and the tables on the device show each session's own blocks."""
    engine.audit(sessions)
    holding = [session for session in sessions if session.table is not None]
    if "plan" in engine.decode_step.stages:
        check_rows(engine.decode_step.rows, holding)
        return
    for session in holding:
        rows = engine.decode_step.block_tables([session])[:, 0].tolist()
        for row, own in zip(rows, layout_of(engine.kv).lists(session.table), strict=True):
            assert row == own + [0] * (len(row) - len(own))


def check_rows(rows, sessions):
    """What the device keeps of a session is what the host knows; a row of somebody who has left may say anything."""
    session_of = {id(session.table): session for session in sessions}
    for row, (table, token) in enumerate(zip(rows.tables, rows.tokens, strict=True)):
        session = session_of.get(id(table))
        if session is not None:
            assert rows.block_tables[row, : len(table)].tolist() == list(table)
            on_device, *rest = rows.fields[:FIELDS, row].tolist()
            assert token in (on_device, UNKNOWN)
            assert rest == [session.num_cached_tokens, *sampling_fields(session.params)]


def pool(kv):
    """K and V of all layers, [2, L, num_blocks, H, block_size, D]; a copy."""
    return torch.stack([torch.stack(kv.k_layers), torch.stack(kv.v_layers)])


def pool_bytes(kv):
    """The same as bytes, so that NaN equals itself."""
    return pool(kv).numpy().tobytes()
