# wrong, which a CPU can show
from dataclasses import dataclass, field

from rosecourse.kv.buffers import index_tensor


@dataclass
class Scan:
    rows: list = field(default_factory=list)
    fresh: list = field(default_factory=list)
    running: list = field(default_factory=list)
    copies: list = field(default_factory=list)

    @property
    def infos(self):
        return self.fresh + self.running


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def scan(self, layer_idx, lists):
        scan = Scan()
        for b, ids in enumerate(lists):
            info = self.kv.info(ids[-1]) if ids else None
            if info is None or info.length == self.kv.block_size:
                start = info.start + info.length if info else 0
                ids.append(self.kv.allocate_block(layer_idx, start))
                scan.fresh.append(self.kv.info(ids[-1]))
                scan.rows.append(b)
            elif info.owners == 1:
                scan.running.append(info)
                scan.rows.append(b)
            else:
                scan.copies.append(b)
        return scan

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        scan = self.scan(layer_idx, block_ids_list)
        if scan.rows:
            infos = scan.infos
            idx_t = index_tensor(scan.rows, self.kv.device)
            blk_t = index_tensor([info.block_index for info in infos], self.kv.device)
            pos_t = index_tensor([info.length for info in infos], self.kv.device)
            self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new.index_select(0, idx_t)
            self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new.index_select(0, idx_t)
            for info in infos:
                info.length += 1
        for b in scan.copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
