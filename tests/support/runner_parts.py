"""Runners as learners write them: right ones in other styles, and wrong ones, each with its cause."""

from dataclasses import replace

import torch

from rosecourse.decode.runner import Outcome, buckets_up_to
from rosecourse.decode.sampling import argmax, argmax_on
from rosecourse.lab.world.cpu_graph import CPUGraph
from rosecourse.lab.world.graph_makers import graphs_for


class Slots:
    """A small object for each bucket, with buffers of its own; greedy and sampled are two lists."""

    class Bucket:
        def __init__(self, rows, work, make, shape):
            self.rows, self.work, self.make = rows, work, make
            self.scores, self.words = torch.zeros(rows, *shape[0], **shape[1]), torch.zeros(rows, dtype=torch.int64)
            self.kinds = [None, None]

        def replay(self, sampled):
            if self.kinds[sampled] is None:
                self.kinds[sampled] = self.make()
                with self.work.rows.all_pads():
                    self.kinds[sampled].warm_up(lambda: self.act(sampled))
                self.kinds[sampled].capture(lambda: self.act(sampled))
            return self.kinds[sampled]

        def act(self, sampled):
            made = self.work(self.work.rows.view(self.rows).inputs, sampled)
            torch.add(made.logits, 0, out=self.scores)
            self.words[...] = made.tokens

    def __init__(self, model, kv, config):
        self.best = argmax
        self.config, self.make = config, graphs_for(kv.device)
        self.shape = (model.shape.vocab_size,), {"dtype": model.dtype, "device": kv.device}

    def start(self, work):
        sizes = buckets_up_to(self.config.max_batch_size)
        self.buckets = {rows: self.Bucket(rows, work, self.make, self.shape) for rows in sizes}
        with torch.no_grad():
            for bucket in self.buckets.values():
                bucket.replay(False)

    def __call__(self, inputs, sampled):
        n = inputs.token_ids.numel()
        bucket = self.buckets[min(rows for rows in self.buckets if rows >= n)]
        bucket.replay(int(sampled)).replay()
        return bucket.scores[:n], bucket.words[:n]


class Table:
    """For each number of sessions the bucket is looked up; the work's parts are called one by one."""

    def __init__(self, model, kv, config):
        self.best = argmax
        self.new, sizes = graphs_for(kv.device), list(buckets_up_to(config.max_batch_size))
        self.bucket_of = [None, *(next(s for s in sizes if s >= n) for n in range(1, sizes[-1] + 1))]
        self.out = Outcome(torch.empty(sizes[-1], model.shape.vocab_size), torch.empty(sizes[-1], dtype=torch.long))
        self.kept = {}

    @torch.inference_mode()
    def start(self, work):
        self.work = work
        for size in sorted(set(self.bucket_of[1:])):
            self.graph(size, False)

    def graph(self, size, sampled):
        key = 2 * size + sampled
        if key not in self.kept:
            view, graph = self.work.rows.view(size), self.new()

            def step():
                for buffer, made in zip(self.out, self.work(view.inputs, sampled), strict=True):
                    buffer.narrow(0, 0, size).copy_(made)

            with self.work.rows.all_pads():
                step()
            graph.capture(step)
            self.kept[key] = graph
        return self.kept[key]

    def __call__(self, inputs, sampled):
        n = len(inputs.context_lens)
        self.graph(self.bucket_of[n], sampled).replay()
        return Outcome(*(buffer.narrow(0, 0, n) for buffer in self.out))


RIGHT = (Slots, Table)


class Base:
    """What the others change one thing of."""

    def __init__(self, model, kv, config):
        self.best = argmax
        self.new = graphs_for(kv.device)
        self.buckets = buckets_up_to(config.max_batch_size)
        self.graphs = {}
        self.logits = torch.empty(self.buckets[-1], model.shape.vocab_size)
        self.tokens = torch.empty(self.buckets[-1], dtype=torch.int64)

    def start(self, work):
        self.work = work
        with torch.inference_mode():
            for bucket in reversed(self.buckets):
                self.graphs[bucket, False] = self.captured(bucket, False)

    def inputs_of(self, bucket):
        return self.work.rows.view(bucket).inputs

    def keep(self, bucket, made):
        self.logits[:bucket].copy_(made.logits)
        self.tokens[:bucket].copy_(made.tokens)

    def warm_up(self, graph, run):
        with self.work.rows.all_pads():
            graph.warm_up(run)

    def captured(self, bucket, sampled):
        graph, inputs = self.new(), self.inputs_of(bucket)

        def run():
            self.keep(bucket, self.work(inputs, sampled))

        self.warm_up(graph, run)
        graph.capture(run)
        return graph

    def bucket_for(self, n):
        return min(bucket for bucket in self.buckets if bucket >= n)

    def graph_for(self, bucket, sampled):
        if (bucket, sampled) not in self.graphs:
            self.graphs[bucket, sampled] = self.captured(bucket, sampled)
        return self.graphs[bucket, sampled]

    def __call__(self, inputs, sampled):
        n = len(inputs.token_ids)
        self.graph_for(self.bucket_for(n), sampled).replay()
        return Outcome(self.logits[:n], self.tokens[:n])


class ReturnsPads(Base):
    def __call__(self, inputs, sampled):
        bucket = self.bucket_for(len(inputs.token_ids))
        self.graph_for(bucket, sampled).replay()
        return Outcome(self.logits[:bucket], self.tokens[:bucket])


class NextSmaller(Base):
    def bucket_for(self, n):
        return max(bucket for bucket in self.buckets if bucket <= n)


class NextSmallerOfItsOwn(Base):
    """With a buffer for each bucket, so that there are too few rows to return."""

    def bucket_for(self, n):
        return max(bucket for bucket in self.buckets if bucket <= n)

    def __call__(self, inputs, sampled):
        n = self.bucket_for(len(inputs.token_ids))
        self.graph_for(n, sampled).replay()
        return Outcome(self.logits[:n], self.tokens[:n])


class AsFirstCalled(Base):
    """Captured in the first step of a bucket, with the inputs of that step."""

    def start(self, work):
        self.work = work

    def __call__(self, inputs, sampled):
        self.given = inputs
        return super().__call__(inputs, sampled)

    def inputs_of(self, bucket):
        return self.given


class AsFirstCalledByNumber(AsFirstCalled):
    """The same for each number of sessions: what is frozen is how far attention reads."""

    def bucket_for(self, n):
        return n


class OwnTensors(Base):
    """Static inputs of its own, which nobody fills."""

    def inputs_of(self, bucket):
        inputs = super().inputs_of(bucket)
        return replace(inputs, token_ids=inputs.token_ids.clone())


class OwnLengths(Base):
    def inputs_of(self, bucket):
        inputs = super().inputs_of(bucket)
        return replace(inputs, context_lens=inputs.context_lens.clone())


class ReplacedOutcome(Base):
    """The outcome of the last capture, whichever graph is replayed."""

    def keep(self, bucket, made):
        self.logits, self.tokens = made


class CopiedAtTheCapture(Base):
    """Clones that no replay writes: they are made again in new memory."""

    def captured(self, bucket, sampled):
        graph = super().captured(bucket, sampled)
        self.logits, self.tokens = self.logits.clone(), self.tokens.clone()
        return graph


class StaleTokens(Base):
    def keep(self, bucket, made):
        self.logits[:bucket].copy_(made.logits)


class WarmsUpAmongTheLiving(Base):
    def warm_up(self, graph, run):
        graph.warm_up(run)


class RunsBeforeItCaptures(Base):
    def warm_up(self, graph, run):
        run()


class CapturesWithoutAReplay(Base):
    def __call__(self, inputs, sampled):
        n = len(inputs.token_ids)
        known = (self.bucket_for(n), sampled) in self.graphs
        graph = self.graph_for(self.bucket_for(n), sampled)
        if known:
            graph.replay()
        return Outcome(self.logits[:n], self.tokens[:n])


class Twice(Base):
    def __call__(self, inputs, sampled):
        self.work(inputs, sampled)
        return super().__call__(inputs, sampled)


class OnceMoreByHand(Base):
    """Runs the work after a capture, and then replays it."""

    def graph_for(self, bucket, sampled):
        known = (bucket, sampled) in self.graphs
        graph = super().graph_for(bucket, sampled)
        if not known:
            self.work(self.inputs_of(bucket), sampled)
        return graph


class ReplaysAmongPads(Base):
    def __call__(self, inputs, sampled):
        with self.work.rows.all_pads():
            return super().__call__(inputs, sampled)


class AlwaysGreedy(Base):
    def graph_for(self, bucket, sampled):
        return super().graph_for(bucket, False)


class OneKindOfGraph(Base):
    """The kind that is asked for first is kept for the bucket."""

    def start(self, work):
        self.work = work

    def graph_for(self, bucket, sampled):
        if bucket not in self.graphs:
            self.graphs[bucket] = self.captured(bucket, sampled)
        return self.graphs[bucket]


class OfTheClass(Base):
    """All engines share the graphs."""

    shared: dict = {}  # noqa: RUF012

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.graphs = OfTheClass.shared

    def start(self, work):
        self.work = work
        with torch.inference_mode():
            for bucket in self.buckets:
                self.graph_for(bucket, False)


class BestByNumPy(Base):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.best = argmax_on(kv.device)


class OnACPUAlone(Base):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.new = CPUGraph


class NoBest(Base):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        del self.best


class ReturnsLogitsAlone(Base):
    def __call__(self, inputs, sampled):
        return super().__call__(inputs, sampled).logits


WRONG = (
    ReturnsPads,
    NextSmaller,
    NextSmallerOfItsOwn,
    AsFirstCalled,
    AsFirstCalledByNumber,
    OwnTensors,
    OwnLengths,
    ReplacedOutcome,
    CopiedAtTheCapture,
    StaleTokens,
    WarmsUpAmongTheLiving,
    RunsBeforeItCaptures,
    CapturesWithoutAReplay,
    Twice,
    OnceMoreByHand,
    ReplaysAmongPads,
    AlwaysGreedy,
    OneKindOfGraph,
    OfTheClass,
    BestByNumPy,
    OnACPUAlone,
    NoBest,
    ReturnsLogitsAlone,
)
