"""Parts of lesson 063, which append by the block table, right and in several styles."""

import torch


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
