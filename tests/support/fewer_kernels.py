"""The parts of lesson 069 as they are on a GPU, on a CPU: their kernels go through the interpreter."""

import torch

from rosecourse import lesson
from rosecourse.decode.forward import AppendWithin, DecodeForward
from rosecourse.decode.ops import LayerOps
from rosecourse.kernels import AppendingAttention, add_norm
from tests.support.graph_runners import PaddedRunner


class OnAGPU(torch.Tensor):
    """A tensor of a CPU that says it is on a GPU, and so do the results of operations on it."""

    is_cuda = True


class Forward(DecodeForward):
    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.attend = AppendWithin(AppendingAttention(kv))


class Ops(LayerOps):
    """The logits say that they are on a GPU: so the vocabulary is padded, and a step ends with the kernel."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.add_norm = add_norm
        self.wte = model.wte.as_subclass(OnAGPU)

    def logits(self, x, norm, wte):
        assert wte.data_ptr() == self.wte.data_ptr()
        return super().logits(x, norm, self.wte)


BEFORE = lesson("068").after
INTERPRETED = lesson("069").after.with_(forward=Forward, ops=Ops)
PADDED = INTERPRETED.with_(runner=PaddedRunner)  # over all rows of a bucket, as wide as the longest session can be
