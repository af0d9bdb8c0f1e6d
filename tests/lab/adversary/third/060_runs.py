"""lesson: 060
verdict: wrong
cause: hangs
shows: cpu
Writes neighbours that stand at one slot together, run by run. A run of one session is put aside, but the loop does not
go on to the next one: with mixed lengths the step never ends.
"""

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Not only a batch at one position: each run of sessions at one position gets along with a number."""

    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        fast_batch_idx, fast_infos, slow_batch_idx = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
                info = self.kv.info(block_ids[-1])
            if info.owners > 1:
                slow_batch_idx.append(b)
                continue
            fast_batch_idx.append(b)
            fast_infos.append(info)
        if fast_batch_idx:
            self.write(layer_idx, fast_batch_idx, fast_infos, key_new, value_new)
            for info in fast_infos:
                info.length += 1
        for b in slow_batch_idx:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device = self.kv.device
        if len(batch_idx) < len(key_new):
            idx_t = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, idx_t), value_new.index_select(0, idx_t)
        positions = [info.length for info in infos]
        blk_t = index_tensor([info.block_index for info in infos], device)
        if len(set(positions)) == 1:
            self.store(layer_idx, blk_t, positions[0], key_new, value_new)
            return
        alone = set()
        i = 0
        while i < len(positions):
            j = i + 1
            while j < len(positions) and positions[j] == positions[i]:
                j += 1
            if j - i > 1:
                self.store(layer_idx, blk_t[i:j], positions[i], key_new[i:j], value_new[i:j])
                i = j
            else:
                alone.add(i)  # all of these together, with a tensor of positions
        if alone:
            rows = sorted(alone)
            rows_t, pos_t = index_tensor([rows, [positions[i] for i in rows]], device)
            self.store(layer_idx, blk_t[rows_t], pos_t, key_new[rows_t], value_new[rows_t])

    def store(self, layer_idx, blocks, slots, key_new, value_new):
        self.kv.k_layers[layer_idx][blocks, :, slots] = key_new
        self.kv.v_layers[layer_idx][blocks, :, slots] = value_new
