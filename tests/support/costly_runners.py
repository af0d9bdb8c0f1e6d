"""Right runners without the idea of lesson 066, or only with half of it."""

import torch

from rosecourse.decode.runner import Outcome
from tests.support.runner_parts import Base


class Eager(Base):
    def start(self, work):
        self.work = work

    def __call__(self, inputs, sampled):
        return self.work(inputs, sampled)


class CapturesEachStep(Base):
    def graph_for(self, bucket, sampled):
        return self.captured(bucket, sampled)


class CapturesWhenNeeded(Base):
    def start(self, work):
        self.work = work


class OneLargeGraph(Base):
    def bucket_for(self, n):
        return self.buckets[-1]


def capture_sampling(runner):
    with torch.inference_mode():
        for bucket in runner.buckets:
            runner.graph_for(bucket, True)


class AlwaysSamples(Base):
    def graph_for(self, bucket, sampled):
        return super().graph_for(bucket, True)

    def start(self, work):
        self.work = work
        capture_sampling(self)


class AllAtStart(Base):
    """Captures the graphs that sample at the start, too."""

    def start(self, work):
        super().start(work)
        capture_sampling(self)


class OneForEachSize(Base):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.buckets = tuple(range(1, config.max_batch_size + 1))


class PowersOfTwo(Base):
    """Runs eagerly over more rows than the largest power of two."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.buckets = [bucket for bucket in (1, 2, 4, 8, 16) if bucket <= config.max_batch_size]

    def __call__(self, inputs, sampled):
        if len(inputs.token_ids) > self.buckets[-1]:
            return self.work(inputs, sampled)
        return super().__call__(inputs, sampled)


class CopiesOutside(Base):
    def __call__(self, inputs, sampled):
        return Outcome(*(made.clone() for made in super().__call__(inputs, sampled)))


class InTheGraphsMemory(Base):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.made = {}

    def captured(self, bucket, sampled):
        self.at = bucket, sampled
        return super().captured(bucket, sampled)

    def keep(self, bucket, made):
        self.made[self.at] = made

    def __call__(self, inputs, sampled):
        n = len(inputs.token_ids)
        at = self.bucket_for(n), sampled
        self.graph_for(*at).replay()
        return Outcome(*(made[:n] for made in self.made[at]))


class Cold(Base):
    def warm_up(self, graph, run):
        pass


WITHOUT_THE_IDEA = {
    Eager: "still 50 operations that the host launches outside a replay in a step of 1 session after steps",
    CapturesEachStep: "still 1 graph captured in a step of 1 session after steps with the same sessions",
    CapturesWhenNeeded: "still 1 graph captured in a step of 5 sessions that are more than in the step before",
    OneLargeGraph: "the graph runs over 16 rows in a step of 1 session after steps with the same sessions",
    AlwaysSamples: "1 replay that samples although nobody asks in a step of 1 session after steps with",
    AllAtStart: "10 graphs were captured until a step of 1 session after steps with the same sessions, and 5 in",
    OneForEachSize: "16 graphs were captured until a step of 1 session after steps with the same sessions, and 5 in",
    PowersOfTwo: "operations that the host launches outside a replay in a step of 11 sessions in an engine of 11 rows",
    CopiesOutside: "still 2 operations that the host launches outside a replay",
    InTheGraphsMemory: "2 tensors of the outcome in the memory of a graph in a step of 1 session",
    Cold: "2 graphs were captured until a step of 3 sessions one of which is the first that samples",
}
