"""Right runners in other styles than the course's."""

import torch

from rosecourse.decode.runner import Outcome, buckets_up_to
from rosecourse.decode.sampling import argmax
from rosecourse.lab.checking.cpu_graph import graphs_for


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
