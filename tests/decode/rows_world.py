"""`Rows` over a cache of their own, and sessions that no engine has; what a plan uploads is counted."""

import torch

from rosecourse import EngineConfig, SamplingParams
from rosecourse.decode.rows import POSITION, bits
from rosecourse.lessons.l064 import Rows
from rosecourse.request.draws import key_of
from rosecourse.request.session import InferenceSession
from tests.support.one_table import L, make_kv

MOST_ROWS = 6
ROW = 6  # numbers of a row beside its blocks: token, position, temperature, top_k, top_p, key


class CountedRows(Rows):
    """Rows that remember what each plan uploads and moves."""

    def __init__(self, *arguments):
        self.uploads, self.moves = [], []
        super().__init__(*arguments)

    def _upload(self, changes):
        self.uploads.append(dict(changes))
        super()._upload(changes)

    def _assign_rows(self, sessions, tables, changes):
        before = self.state.clone()
        super()._assign_rows(sessions, tables, changes)
        if not torch.equal(before, self.state):
            self.moves.append(len(tables))


class RowsWorld:
    """Sessions that take steps without a model: their tokens are counted through."""

    def __init__(self, block_size=2, num_blocks=200, max_seq_len=64):
        self.kv = make_kv(block_size, num_blocks)
        config = EngineConfig(block_size=block_size, max_batch_size=MOST_ROWS, max_seq_len=max_seq_len)
        self.rows = CountedRows(None, self.kv, config)
        self.seated = []  # of the last plan, in its order: (table, token, its blocks then)
        self.count = 0

    def session(self, length=3, **params):
        """A session that waits for a decode step: all its tokens but the last are in the cache."""
        session = InferenceSession([self.token() for _ in range(length)], SamplingParams(**params))
        self.prefill(session)
        session.token_ids.append(self.token())
        return session

    def token(self):
        self.count += 1
        return self.count

    def prefill(self, session):
        session.table = self.kv.allocate(len(session.token_ids))
        session.num_cached_tokens = len(session.token_ids)

    def free(self, session):
        self.kv.free(session.table)
        session.table = None

    def again(self, session):
        """Freed and prefilled: the same session with other blocks."""
        self.free(session)
        self.prefill(session)
        session.token_ids.append(self.token())

    def fork(self, session):
        fork = InferenceSession(session.prompt_ids, session.params)
        fork.token_ids = list(session.token_ids)
        fork.num_cached_tokens = session.num_cached_tokens
        fork.table = self.kv.share(session.table)
        return fork

    def plan(self, *sessions):
        """Place and plan; the rows are then what the sessions say. Returns how many numbers are uploaded, and moves."""
        self.kv.place([session.table for session in sessions])
        self.rows.uploads.clear()
        self.rows.moves.clear()
        self.check(self.rows.plan(list(sessions)), sessions)
        self.seated = [(session.table, session.token_ids[-1], list(session.table)) for session in sessions]
        assert len(self.rows.uploads) <= 1
        return sum(map(len, self.rows.uploads)), len(self.rows.moves)

    def step(self, *sessions, take=True):
        """A whole step, after which the tokens stay on the device, or are the host's alone."""
        counted = self.plan(*sessions)
        self.rows.advance()
        for session in sessions:
            session.num_cached_tokens += 1
            session.table.num_tokens += 1
        tokens = [self.token() for _ in sessions]
        if take:
            assert self.rows.holds(sessions)
            self.rows.take(torch.tensor(tokens), tokens)
            self.seated = [(table, new, blocks) for (table, _, blocks), new in zip(self.seated, tokens, strict=True)]
        for session, token in zip(sessions, tokens, strict=True):
            session.token_ids.append(token)
        return counted

    def expected_numbers(self, sessions):
        """How many numbers differ between the rows that a plan will find, and the sessions once they are placed."""
        numbers = 0
        for session in sessions:
            known = [(token, blocks) for table, token, blocks in self.seated if table is session.table]
            if not known:
                numbers += ROW + len(session.table)
                continue
            ((token, blocks),) = known
            same = sum(a == b for a, b in zip(blocks, session.table, strict=False))
            numbers += (token != session.token_ids[-1]) + len(session.table) - same
        return numbers

    def check(self, inputs, sessions):
        """Every row equals its session."""
        n = len(sessions)
        assert inputs.token_ids.tolist() == [session.token_ids[-1] for session in sessions]
        assert inputs.context_lens.tolist() == [session.num_cached_tokens for session in sessions]
        assert inputs.max_context_len == max(session.num_cached_tokens for session in sessions)
        assert inputs.block_tables.shape == (L, n, self.rows.max_blocks)
        for b, session in enumerate(sessions):
            assert inputs.block_tables[:, b, : len(session.table)].tolist() == [list(session.table)] * L
            params = session.params
            told = [bits(params.temperature), params.top_k, bits(params.top_p), key_of(params.seed)]
            assert self.rows.fields[POSITION + 1 :, b].tolist() == told
        self.check_asked(self.rows.asked(), sessions)

    def check_asked(self, asked, sessions):
        if all(session.params.temperature == 0 for session in sessions):
            assert asked is None
            return
        assert asked.positions.tolist() == [session.num_cached_tokens for session in sessions]
        for name in ("temperature", "top_k", "top_p"):
            assert getattr(asked, name).tolist() == [getattr(session.params, name) for session in sessions]
        assert asked.keys.tolist() == [key_of(session.params.seed) for session in sessions]
