"""lesson: 060
verdict: right
cause: right
shows: cpu
Goes a step further than asked: rows that stand side by side in the batch, whole or not, are taken as a slice, which is a
view; a selection is made only where a copy leaves a hole between them.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.block_ids_per_layer for session in sessions]
        for layer_idx, lists in enumerate(zip(*tables)):
            self.append_token_batch(layer_idx, list(lists), keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv

        def room(ids):
            last = kv.info(ids[-1]) if ids else None
            if last and last.length < kv.block_size:
                return last
            ids.append(kv.allocate_block(layer_idx, last.start + kv.block_size if last else 0))
            return kv.info(ids[-1])

        infos = list(map(room, block_ids_list))
        batch_idx = [b for b, info in enumerate(infos) if info.owners == 1]
        copies = [b for b, info in enumerate(infos) if info.owners != 1]
        if batch_idx:
            chosen = [infos[b] for b in batch_idx]
            blocks = index_tensor([info.block_index for info in chosen], kv.device)
            low, high = min(info.length for info in chosen), max(info.length for info in chosen)
            slots = low if low == high else index_tensor([info.length for info in chosen], kv.device)
            first, end = batch_idx[0], batch_idx[-1] + 1
            if end - first == len(batch_idx):  # ascending, so without a hole
                rows = slice(first, end)
            else:
                rows = index_tensor(batch_idx, kv.device)
            kv.k_layers[layer_idx][blocks, :, slots] = key_new[rows]
            kv.v_layers[layer_idx][blocks, :, slots] = value_new[rows]
            for info in chosen:
                info.length += 1
        for b in copies:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
