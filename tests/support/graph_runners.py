"""Runners beside which those with a GPU's graphs are tried, on a CPU too."""

from bisect import bisect_left

from rosecourse.decode.runner import EagerRunner, GraphRunner, Outcome, buckets_up_to
from rosecourse.decode.sampling import argmax
from rosecourse.lab.checking.cpu_graph import CPUGraph
from rosecourse.lessons import l066


class CPUGraphRunner(GraphRunner):
    """The engine's runner, with graphs of a CPU."""

    def graphs_of(self, device):
        return CPUGraph


class CPUGraphRunnerOf066(l066.GraphRunner):
    """The same of the rung that brought it."""

    graphs_of = CPUGraphRunner.graphs_of


class PaddedRunner(EagerRunner):
    """Runs eagerly over all rows of a bucket: what a graph computes, bit for bit."""

    def __init__(self, model, kv, config):
        self.best = argmax
        self.buckets = buckets_up_to(config.max_batch_size)

    def __call__(self, inputs, sampled):
        num_rows = len(inputs.token_ids)
        bucket = self.buckets[bisect_left(self.buckets, num_rows)]
        logits, tokens = self.work(self.work.rows.view(bucket).inputs, sampled)
        return Outcome(logits[:num_rows], tokens[:num_rows])
