"""Operations with kernels as learners write them: right ones in several styles, and what they have in common."""

import torch
import triton

from rosecourse.kernels.launch import Launch
from tests.support.product_kernels import embedded, normed_product, product, sum_in_pieces


class Base:
    """What the others have in common."""

    tile = 16, 64, 32

    def __init__(self, model, config):
        self.model, self.kept = model, {}

    def embed(self, token_ids, positions, wte, wpe):
        x = wte.new_empty(len(token_ids), wte.shape[1])
        width = wte.shape[1]
        embedded[(len(x),)](token_ids, positions, wte, wpe, x, width, triton.next_power_of_2(width), 1)
        return x

    def norm_linear(self, x, norm, linear):
        return self.run(x, self.weights(norm, linear), eps=norm.eps)

    def norm_linear_gelu(self, x, norm, linear):
        return self.run(x, self.weights(norm, linear), eps=norm.eps, gelu=True)

    def linear_add(self, h, linear, x):
        return self.run(h, self.weights(None, linear), old=x)

    def logits(self, x, norm, wte):
        return self.run(x, self.weights(norm, wte), eps=norm.eps)

    def key(self, norm, linear):
        return norm, linear

    def weights(self, norm, linear):
        key = self.key(norm, linear)
        if key not in self.kept:
            self.kept[key] = self.fold(norm, linear)
        return self.kept[key]

    def fold(self, norm, linear):
        weight, bias = (linear.T, 0.0) if isinstance(linear, torch.Tensor) else (linear.weight, linear.bias)
        if norm is not None:
            bias = bias + norm.bias @ weight
            weight = norm.weight[:, None] * weight
        return weight.T.contiguous(), bias + weight.new_zeros(weight.shape[1]), weight.sum(0)

    def room(self, x, width):
        return x.new_empty(len(x), width)

    def grid(self, rows, columns):
        return triton.cdiv(rows, self.tile[0]), triton.cdiv(columns, self.tile[1])

    def run(self, x, weights, eps=None, gelu=False, old=None):
        w, bias, colsum = weights
        (N, K), rows = w.shape, len(x)
        out = self.room(x, N)
        tensors = x, w, bias, colsum, out if old is None else old, out
        constants = N, K, triton.next_power_of_2(K), eps is not None, gelu, old is not None
        self.launch(self.grid(rows, N), *tensors, rows, eps or 0.0, *constants, *self.tile)
        return out

    def launch(self, grid, *arguments):
        product[grid](*arguments)


class NothingFolded:
    """The norm is computed where it is wanted, and the weights are read as they are; sums come last."""

    def __init__(self, model, config):
        self.none = torch.zeros(1, device=model.device)

    def embed(self, token_ids, positions, wte, wpe):
        out = torch.empty(len(token_ids), wte.size(1), dtype=wte.dtype, device=wte.device)
        embedded[(len(out), 1, 1)](token_ids, positions, wte, wpe, out, C=wte.size(1), C2=128, AT=1)
        return out

    def norm_linear(self, x, norm, linear, gelu=False):
        w = linear.weight
        return self.made(x, norm, w, w.stride(0), w.stride(1), linear.bias, gelu)

    def norm_linear_gelu(self, x, norm, linear):
        return self.norm_linear(x, norm, linear, True)

    def linear_add(self, h, linear, x):
        weight = linear.weight
        out, rows = torch.empty_like(x), len(x)
        if not hasattr(self, "turned"):
            self.turned = {}
        if linear not in self.turned:
            self.turned[linear] = weight.t().contiguous()
        sizes = weight.size(1), weight.size(0), triton.next_power_of_2(weight.size(0)), False, False, True
        grid = (rows + 15) // 16, (weight.size(1) + 31) // 32
        product[grid](h, self.turned[linear], linear.bias, self.none, x, out, rows, 0.0, *sizes, 16, 32, 64)
        return out

    def logits(self, x, norm, wte):
        return self.made(x, norm, wte.t(), wte.stride(1), wte.stride(0), None)

    def made(self, x, norm, w, in_step, out_step, bias, gelu=False):
        (K, N), rows = w.shape, x.size(0)
        out = x.new_empty((rows, N))
        given = bias if bias is not None else self.none
        steps = {"IN_STEP": in_step, "OUT_STEP": out_step, "NORM": True, "GELU": gelu, "BIAS": bias is not None}
        grid = triton.cdiv(N, 32), triton.cdiv(rows, 16)
        tensors = x, norm.weight, norm.bias, w, given, out
        normed_product[grid](*tensors, rows, norm.eps, N, K, **steps, BM=16, BN=32, BK=16)
        return out


class InPieces(Base):
    """Long products are cut into pieces, and the last one who comes adds them up."""

    def __init__(self, model, config):
        super().__init__(model, config)
        self.arrived = torch.zeros(512, dtype=torch.int32, device=model.device)

    def linear_add(self, h, linear, x):
        w, bias, _ = self.weights(None, linear)
        out = torch.empty_like(x)
        down, across = self.grid(len(h), len(w))
        pieces = h.new_empty(down * across * 2 * 16 * 64)
        constants = *w.shape, 2, *self.tile
        sum_in_pieces[down, across, 2](h, w, bias, x, out, pieces, self.arrived, len(h), *constants)
        return out


class ByTheCoursesLaunch(Base):
    """Launched as the engine launches its kernels."""

    def launch(self, grid, *arguments):
        *given, N, K, K2, norm, gelu, add, BM, BN, BK = arguments
        Launch(product, (N, K, K2, norm, gelu, add, BM, BN, BK))((*grid, 1), *given)


class IntoTheStream(Base):
    """The sum is written where the stream was."""

    def run(self, x, weights, eps=None, gelu=False, old=None):
        self.into = old
        return super().run(x, weights, eps, gelu, old)

    def room(self, x, width):
        return super().room(x, width) if self.into is None else self.into


RIGHT = (NothingFolded, InPieces, ByTheCoursesLaunch, IntoTheStream)
