"""A world for misuse: an engine with a session in each state, and all that a refused call must leave as it was."""

from rosecourse import BEST, OnlineScheduler, SamplingParams
from tests.support.scheduling import make_engine

NEW = 5  # tokens that each session makes
PARAMS = SamplingParams(max_new_tokens=NEW, stop_on_eos=False)
VOCAB = 211


class World:
    """An engine, one session in each state, a scheduler with two, and another engine with one."""

    def __init__(self, model, parts=BEST):
        self.engine, self.other = (make_engine(model, parts, max_batch_size=8, num_blocks=64) for _ in range(2))
        self.new, self.reserved, self.ready, self.a, self.b, self.done, self.gone, self.freed = self.made = [
            self.engine.new_session([10 + n, 3, 5, 7, 11, 13], PARAMS) for n in range(8)
        ]
        self.engine.reserve(self.reserved)
        self.logits = self.engine.prefill([self.ready])
        live = [self.a, self.b, self.done, self.gone, self.freed]
        self.engine.take_tokens(live, self.engine.prefill(live))
        for _ in range(2):
            self.step(self.engine, live)
        while not self.done.finished:
            self.step(self.engine, [self.done, self.gone])
        self.engine.free(self.gone)
        self.engine.free(self.freed)
        self.scheduler = OnlineScheduler(self.engine, max_batch_size=1)
        self.running, self.queued = (self.engine.new_session([20 + n, 3, 5], PARAMS) for n in range(2))
        for session in (self.running, self.queued):
            self.scheduler.submit(session)
        self.scheduler.step()
        self.aside = OnlineScheduler(self.engine)
        self.aside.submit(kept := self.engine.new_session([40, 3, 5], PARAMS))
        self.kept = kept
        self.alien, self.alien_new = (self.other.new_session([30 + n, 3, 5], PARAMS) for n in range(2))
        self.other.take_tokens([self.alien], self.other.prefill([self.alien]))
        self.ended = OnlineScheduler(self.engine)
        self.cancelled = self.engine.new_session([1, 2], PARAMS)
        self.ended.submit(self.cancelled)
        self.ended.cancel(self.cancelled)

    @property
    def all(self):
        return [*self.made, self.running, self.queued, self.kept, self.cancelled]

    def step(self, engine, sessions):
        engine.take_tokens(sessions, engine.decode_step_sessions(sessions))

    def books(self):
        """All that a call that is refused leaves as it was; raises where an engine's books are wrong."""
        self.engine.audit(self.all)
        self.other.audit([self.alien, self.alien_new])
        sessions = [(s.token_ids, s.table, s.num_cached_tokens, s.finish_reason) for s in [*self.all, self.alien]]
        queues = [list(map(id, queue)) for queue in (self.scheduler.waiting, self.scheduler.running)]
        free = [engine.kv.num_available() for engine in (self.engine, self.other)]
        return repr((sessions, queues, free))

    def finish(self):
        """Run everything to its end and give all blocks back; returns the tokens of each session."""
        self.engine.take_tokens([self.ready], self.logits)
        rest = [self.new, self.reserved, self.freed]
        self.engine.take_tokens(rest, self.engine.prefill(rest))
        self.scheduler.run()
        self.aside.run()
        self.scheduler.submit(fork := self.engine.fork(self.a))
        self.scheduler.run()
        for engine, sessions in ((self.engine, self.made), (self.other, [self.alien])):
            while live := [session for session in sessions if not session.finished]:
                self.step(engine, live)
            for session in sessions:
                if session.table is not None:
                    engine.free(session)
            engine.audit([])
        assert self.engine.kv.num_available() == self.other.kv.num_available() == 64
        return [session.token_ids for session in [*self.all, self.alien, fork]]
