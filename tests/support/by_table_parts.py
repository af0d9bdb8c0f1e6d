"""Parts of lesson 063, which append by the block table: right ones in several styles, wrong ones with their causes."""

import torch

from rosecourse.kernels import TRITON_AVAILABLE
from rosecourse.kv.buffers import index_tensor

if TRITON_AVAILABLE:
    import triton
    import triton.language as tl

    @triton.jit
    def store_row(
        k, v, key, value, table, where, ks, vs, ts, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, W: tl.constexpr
    ):
        b = tl.program_id(0)
        at = tl.load(where + b)
        block = tl.load(table + b * ts + at // S).to(tl.int64)
        lane = tl.arange(0, W)
        here = block * (H * S * D) + lane // D * (S * D) + at % S * D + lane % D
        tl.store(k + here, tl.load(key + b * ks + lane, lane < H * D), lane < H * D)
        tl.store(v + here, tl.load(value + b * vs + lane, lane < H * D), lane < H * D)

    @triton.jit
    def store_row_in_32_bits(
        k, v, key, value, table, where, ks, vs, ts, H: tl.constexpr, D: tl.constexpr, S: tl.constexpr, W: tl.constexpr
    ):
        b = tl.program_id(0)
        at = tl.load(where + b)
        block = tl.load(table + b * ts + at // S).to(tl.int32)
        lane = tl.arange(0, W)
        here = block * (H * S * D) + lane // D * (S * D) + (at % S).to(tl.int32) * D + lane % D
        tl.store(k + here, tl.load(key + b * ks + lane, lane < H * D), lane < H * D)
        tl.store(v + here, tl.load(value + b * vs + lane, lane < H * D), lane < H * D)


# -- right ones, as they are without kernels --------------------------------------------------------------------------


class Gathered:
    """Close to the course's, as a base of wrong ones: each changes one method."""

    def __init__(self, model, kv, config):
        self.kv, self.size = kv, kv.block_size

    def __call__(self, inputs):
        blocks = self.blocks(inputs.block_tables, inputs.context_lens)
        slots = self.slots(inputs.context_lens)
        return lambda layer_idx, k, v: self.write(layer_idx, blocks, slots, k, v)

    def blocks(self, tables, positions):
        return tables[0].gather(1, (positions // self.size).unsqueeze(1)).squeeze(1)

    def slots(self, positions):
        return positions % self.size

    def write(self, layer_idx, blocks, slots, k, v):
        self.kv.k_layers[layer_idx][blocks, :, slots] = k
        self.kv.v_layers[layer_idx][blocks, :, slots] = v


class FlatSlots:
    """One number for each slot of the pool, as vLLM's `slot_mapping`; rows of a view that has the slots in front."""

    def __init__(self, model, kv, config):
        self.size, self.caches = kv.block_size, list(zip(kv.k_layers, kv.v_layers, strict=True))

    def __call__(self, inputs):
        column = torch.div(inputs.context_lens, self.size, rounding_mode="floor")
        rows = torch.arange(len(column), device=column.device)
        flat = inputs.block_tables[0][rows, column].long() * self.size + inputs.context_lens.remainder(self.size)
        places = flat // self.size, flat % self.size

        def append(layer_idx, k, v):
            for cache, new in zip(self.caches[layer_idx], (k, v), strict=True):
                heads, dim = cache.shape[1], cache.shape[3]
                cache.transpose(1, 2).index_put_(places, new.view(-1, heads, dim))

        return append


class Writer:
    """An object that is called for each layer."""

    def __init__(self, kv, where):
        self.kv, self.where = kv, where

    def __call__(self, layer_idx, k, v):
        block, slot = self.where
        self.kv.keys[layer_idx, block, :, slot] = k
        self.kv.values[layer_idx, block, :, slot] = v


class MakesWriters:
    """Keeps nothing between steps, and writes through the tensors of all layers."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, inputs):
        column, slot = inputs.context_lens // self.kv.block_size, inputs.context_lens % self.kv.block_size
        block = torch.take_along_dim(inputs.block_tables[-1], column[:, None], 1).flatten().long()
        return Writer(self.kv, (block, slot))


RIGHT = (Gathered, FlatSlots, MakesWriters)


# -- right ones with a kernel of their own -----------------------------------------------------------------------------


class WithoutAGate:
    """Launches a kernel of its own, for batches of any size."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def kernel(self):
        return store_row

    def __call__(self, inputs):
        tables, positions = inputs.block_tables[0], inputs.context_lens

        def append(layer_idx, k, v):
            (_, heads, size, dim), kernel = self.kv.k_layers[layer_idx].shape, self.kernel()
            kernel[(len(k),)](
                self.kv.k_layers[layer_idx],
                self.kv.v_layers[layer_idx],
                k,
                v,
                tables,
                positions,
                k.stride(0),
                v.stride(0),
                tables.stride(0),
                heads,
                dim,
                size,
                triton.next_power_of_2(heads * dim),
            )

        return append


class OwnKernel(WithoutAGate):
    """The same from the threshold on."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.otherwise, self.gate = Gathered(model, kv, config), config.triton_kv_append_min_batch

    def __call__(self, inputs):
        by_kernel = len(inputs.context_lens) >= self.gate
        return super().__call__(inputs) if by_kernel else self.otherwise(inputs)


class OwnKernelIn32Bits(WithoutAGate):
    def kernel(self):
        return store_row_in_32_bits


# -- wrong ones -------------------------------------------------------------------------------------------------------


class FirstBlock(Gathered):
    def blocks(self, tables, positions):
        return tables[0, :, 0]


class BlockOfTheLastToken(Gathered):
    def blocks(self, tables, positions):
        return super().blocks(tables, (positions - 1).clamp(min=0))


class LastEntryThatIsNotZero(Gathered):
    def blocks(self, tables, positions):
        column = (tables[0] != 0).sum(1) - 1
        return tables[0].gather(1, column.clamp(min=0).unsqueeze(1)).squeeze(1)


class SlotBefore(Gathered):
    def slots(self, positions):
        return (positions - 1) % self.size


class PositionInTheSession(Gathered):
    def slots(self, positions):
        return positions


class RowsOfTheTableTurned(Gathered):
    def blocks(self, tables, positions):
        return super().blocks(tables, positions).flip(0)


class RowsOfTheBatchTurned(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        super().write(layer_idx, blocks, slots, k.flip(0), v.flip(0))


class AlwaysLayerZero(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        super().write(0, blocks, slots, k, v)


class SwapsKAndV(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        super().write(layer_idx, blocks, slots, v, k)


class KeysAlone(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        self.kv.k_layers[layer_idx][blocks, :, slots] = k


class IntoACopy(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        for cache, new in ((self.kv.k_layers, k), (self.kv.v_layers, v)):
            cache[layer_idx][blocks][:, :, slots] = new.unsqueeze(2)


class Halves(Gathered):
    def write(self, layer_idx, blocks, slots, k, v):
        super().write(layer_idx, blocks, slots, k.half().to(k.dtype), v)


class ChangesPositions(Gathered):
    def __call__(self, inputs):
        append = super().__call__(inputs)
        inputs.context_lens.add_(1)
        return append


class CountsTheToken(Gathered):
    def __call__(self, inputs):
        for session in inputs.sessions:
            session.table.num_tokens += 1
        return super().__call__(inputs)


class TakesABlock(Gathered):
    """As if nobody had made room."""

    def __call__(self, inputs):
        for session in inputs.sessions:
            if session.table.num_tokens % self.size == 0:
                session.table.append(self.kv.allocate_block())
        return super().__call__(inputs)


class KeepsSlots(Gathered):
    """Finds the slots of a batch once, and then counts on."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.kept = {}

    def blocks(self, tables, positions):
        return self.kept.setdefault(len(positions), super().blocks(tables, positions))


class CountsLayers(Gathered):
    """Takes no notice of which layer it is called for; a step that is broken off puts it out of step."""

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        self.layer = 0

    def write(self, layer_idx, blocks, slots, k, v):
        super().write(self.layer % self.kv.num_layers, blocks, slots, k, v)
        self.layer += 1


class EightBits(Gathered):
    def blocks(self, tables, positions):
        return super().blocks(tables, positions) & 255


class AllAtOnce(Gathered):
    """The contract of the lessons before."""

    def __call__(self, sessions, keys, values):
        raise NotImplementedError


class ReturnsNothing(Gathered):
    def __call__(self, inputs):
        super().__call__(inputs)


class AppendsWithoutALayer(Gathered):
    def __call__(self, inputs):
        append = super().__call__(inputs)
        return lambda k, v: append(0, k, v)


class FromLists(Gathered):
    """Right, and without the lesson's idea."""

    def blocks(self, tables, positions):
        return index_tensor(tables[0].gather(1, (positions // self.size)[:, None])[:, 0].tolist(), self.kv.device)


class ForEachLayer(Gathered):
    """Right, and finds the slots again in each layer."""

    def __call__(self, inputs):
        def append(layer_idx, k, v):
            blocks = self.blocks(inputs.block_tables, inputs.context_lens)
            self.write(layer_idx, blocks, self.slots(inputs.context_lens), k, v)

        return append


WRONG = (
    FirstBlock,
    BlockOfTheLastToken,
    LastEntryThatIsNotZero,
    SlotBefore,
    PositionInTheSession,
    RowsOfTheTableTurned,
    RowsOfTheBatchTurned,
    AlwaysLayerZero,
    SwapsKAndV,
    KeysAlone,
    IntoACopy,
    Halves,
    ChangesPositions,
    CountsTheToken,
    TakesABlock,
    KeepsSlots,
    CountsLayers,
    EightBits,
    AllAtOnce,
    ReturnsNothing,
    AppendsWithoutALayer,
)
WITHOUT_THE_IDEA = {
    WithoutAGate: "Triton kernels launched in a step of 16 sessions inside their blocks; the course's part",
    FromLists: "still 1 tensor built from Python lists",
    ForEachLayer: "index tensors built",
}
