"""lesson: 038
verdict: wrong
cause: values-changed
shows: cpu
Wants [n, D, H] for a transposed view of the cache and gets it with `view` instead of `transpose`: the numbers of a
token are all there, dealt out to the wrong heads and dimensions.
"""

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        # [num_blocks, block_size, D, H]: block and slot are neighbours, so the two indices need no slice between them
        self.k_by_token = [layer.permute(0, 2, 3, 1) for layer in kv.k_layers]
        self.v_by_token = [layer.permute(0, 2, 3, 1) for layer in kv.v_layers]

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]):
        for layer in range(self.kv.num_layers):
            fast, slow = self.part(layer, sessions)
            if fast:
                rows, infos = zip(*fast, strict=True)
                n, h, d = len(rows), *keys[layer].shape[1:]
                rows_t = index_tensor(rows, self.kv.device)
                blk_t = index_tensor([i.block_index for i in infos], self.kv.device)
                pos_t = index_tensor([i.length for i in infos], self.kv.device)
                self.k_by_token[layer][blk_t, pos_t] = keys[layer][rows_t].view(n, d, h)
                self.v_by_token[layer][blk_t, pos_t] = values[layer][rows_t].view(n, d, h)
                for info in infos:
                    info.length += 1
            for b in slow:
                ids = sessions[b].block_ids_per_layer[layer]
                self.kv.append_token(layer, ids, keys[layer][b], values[layer][b])

    def part(self, layer, sessions):
        fast, slow = [], []
        for b, s in enumerate(sessions):
            ids = s.block_ids_per_layer[layer]
            info = self.kv.info(ids[-1]) if ids else None
            if info is not None and info.owners == 1 and info.length < self.kv.block_size:
                fast.append((b, info))
            else:
                slow.append(b)
        return fast, slow
