"""The five kernels of lessons 070 and 071 wherever tests run: on a CPU through the interpreter."""

from __future__ import annotations

from rosecourse.decode import five_kernels
from rosecourse.kernels import FusedLinears, triton_runs_on
from rosecourse.lessons import l070


class _Anywhere:
    def kernels_on(self, device, dtype):
        runs = triton_runs_on(device) and dtype in five_kernels.DTYPES
        return super().kernels_on(device, dtype) or (FusedLinears(device, dtype) if runs else None)


class LayerOps(_Anywhere, five_kernels.LayerOps):
    """The best ones, which an engine on a CPU leaves alone."""


class FormerLayerOps(_Anywhere, l070.LayerOps):
    """Those of lesson 070."""
