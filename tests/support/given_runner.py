"""A right runner, of which wrong ones change a few lines."""

import torch

from rosecourse.decode.runner import Outcome, buckets_up_to
from rosecourse.decode.sampling import argmax
from rosecourse.lab.checking.cpu_graph import graphs_for


class Given:
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

    def captured(self, bucket, sampled):
        graph, inputs = self.new(), self.work.rows.view(bucket).inputs

        def run():
            made = self.work(inputs, sampled)
            self.logits[:bucket].copy_(made.logits)
            self.tokens[:bucket].copy_(made.tokens)

        with self.work.rows.all_pads():
            graph.warm_up(run)
        graph.capture(run)
        return graph

    def __call__(self, inputs, sampled):
        n = len(inputs.token_ids)
        bucket = min(bucket for bucket in self.buckets if bucket >= n)
        if (bucket, sampled) not in self.graphs:
            self.graphs[bucket, sampled] = self.captured(bucket, sampled)
        self.graphs[bucket, sampled].replay()
        return Outcome(self.logits[:n], self.tokens[:n])
