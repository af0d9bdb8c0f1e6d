"""lesson: 060
verdict: wrong
cause: wrong-block
shows: cpu
Makes the tensor of blocks once, in layer 0, and uses it in all layers; a session's blocks may lie elsewhere in each.
"""
from types import SimpleNamespace

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """060, with the bookkeeping of all layers first: the layers move in step, so one set of indices will do."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        plan = None
        for layer_idx in range(self.kv.num_layers):
            lists = [s.block_ids_per_layer[layer_idx] for s in sessions]
            plan = self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx], plan)

    def scan(self, layer_idx, lists):
        rows, infos, copies = [], [], []
        for b, ids in enumerate(lists):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer_idx, info.start + info.length if info else 0))
                info = self.kv.info(ids[-1])
            if info.owners > 1:
                copies.append(b)
            else:
                rows.append(b)
                infos.append(info)
        return rows, infos, copies

    def make_plan(self, rows, infos, batch):
        dev = self.kv.device
        slots = [info.length for info in infos]
        return SimpleNamespace(
            rows=None if len(rows) == batch else index_tensor(rows, dev),
            blocks=index_tensor([info.block_index for info in infos], dev),
            slots=slots[0] if len(set(slots)) == 1 else index_tensor(slots, dev),
        )

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new, plan=None):
        rows, infos, copies = self.scan(layer_idx, block_ids_list)
        if rows:
            plan = plan or self.make_plan(rows, infos, len(key_new))
            k, v = key_new, value_new
            if plan.rows is not None:
                k, v = k.index_select(0, plan.rows), v.index_select(0, plan.rows)
            self.kv.k_layers[layer_idx][plan.blocks, :, plan.slots] = k
            self.kv.v_layers[layer_idx][plan.blocks, :, plan.slots] = v
        for info in infos:
            info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
        return plan
