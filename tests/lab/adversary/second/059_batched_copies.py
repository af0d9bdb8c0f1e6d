"""lesson: 059
verdict: right
cause: right
shows: cpu
Copies of shared blocks are made for the batch as well: pairs of blocks are collected, then all write; no `append_token`.
"""

from collections import namedtuple

from rosecourse.kv.buffers import index_tensor

Plan = namedtuple("Plan", "sources targets lasts")


class MyKVAppend:
    """Scan, copy, write: each at most once a layer."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, tables, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        plan = self.scan(layer_idx, block_ids_list)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        device = self.kv.device
        if plan.sources:
            source, target = index_tensor([plan.sources, plan.targets], device)
            k_layer.index_copy_(0, target, k_layer.index_select(0, source))  # whole blocks: what is not filled is not read
            v_layer.index_copy_(0, target, v_layer.index_select(0, source))
        blocks, slots = index_tensor([list(pair) for pair in zip(*plan.lasts, strict=True)], device)
        k_layer[blocks, :, slots] = key_new
        v_layer[blocks, :, slots] = value_new
        for table in block_ids_list:
            self.kv.info(table[-1]).length += 1

    def scan(self, layer_idx, block_ids_list):
        """Give every session a last block that is its own and has a slot. Only the books change here."""
        kv, plan = self.kv, Plan([], [], [])
        for table in block_ids_list:
            last = kv.info(table[-1]) if table else None
            if last is None or last.length == kv.block_size:
                table.append(kv.allocate_block(layer_idx, 0 if last is None else last.start + last.length))
            elif last.owners > 1:
                copy_id = kv.allocate_block(layer_idx, last.start)
                copy = kv.info(copy_id)
                copy.length = last.length
                last.owners -= 1  # one at least is left, so that it is not to be freed
                table[-1] = copy_id
                plan.sources.append(last.block_index)
                plan.targets.append(copy.block_index)
            last = kv.info(table[-1])
            plan.lasts.append((last.block_index, last.length))
        return plan
