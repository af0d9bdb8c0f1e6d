"""lesson: 060
verdict: wrong
cause: state-kept
shows: cpu
Keeps the tensor of blocks as long as the number of blocks of each session stays the same. Another session with as
many blocks, or a fork that takes the place of one, has the same key and other blocks.
"""

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    """Index tensors are kept as long as nobody has begun a block."""

    def __init__(self, model, kv, config):
        self.kv = kv
        self._blocks: dict[int, tuple[list[int], Tensor]] = {}

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            self.append_token_batch(layer, [s.block_ids_per_layer[layer] for s in sessions], keys[layer], values[layer])

    def blocks_of(self, layer, lists, infos):
        key = [len(ids) for ids in lists]
        kept_key, kept = self._blocks.get(layer, (None, None))
        if key != kept_key:
            kept = index_tensor([info.block_index for info in infos], self.kv.device)
            self._blocks[layer] = (key, kept)
        return kept

    def append_token_batch(self, layer, block_ids_list, key_new, value_new):
        kv = self.kv
        fast, infos, slow = [], [], []
        for b, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info is None or info.length == kv.block_size:
                ids.append(kv.allocate_block(layer, 0 if info is None else info.start + info.length))
                info = kv.info(ids[-1])
            if info.owners > 1:
                slow.append(b)
            else:
                fast.append(b)
                infos.append(info)
        if fast:
            blocks = self.blocks_of(layer, [block_ids_list[b] for b in fast], infos)
            k, v = key_new, value_new
            if slow:
                chosen = index_tensor(fast, kv.device)
                k, v = k.index_select(0, chosen), v.index_select(0, chosen)
            first = infos[0].length
            level = all(info.length == first for info in infos)
            slot = first if level else index_tensor([info.length for info in infos], kv.device)
            kv.k_layers[layer][blocks, :, slot] = k
            kv.v_layers[layer][blocks, :, slot] = v
        for info in infos:
            info.length += 1
        for b in slow:
            kv.append_token(layer, block_ids_list[b], key_new[b], value_new[b])
