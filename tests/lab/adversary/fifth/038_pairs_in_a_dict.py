"""lesson: 038
verdict: wrong
cause: k-v-swapped
shows: cpu
The sessions that are not simple go to append_token with V as its K and K as its V, because the dictionary of the new rows names V first.
The indexed stores go by name and are right, so only tokens that begin a block or follow a copy are swapped.
"""
from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for i in range(self.kv.num_layers):
            tables = [session.block_ids_per_layer[i] for session in sessions]
            self.append_token_batch(i, tables, keys[i], values[i])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv = self.kv
        new = {"v": value_new, "k": key_new}
        cache = {"v": kv.v_layers[layer_idx], "k": kv.k_layers[layer_idx]}

        plan = {"rows": [], "blocks": [], "slots": []}
        infos = {}
        for row, ids in enumerate(block_ids_list):
            info = kv.info(ids[-1]) if ids else None
            if info is not None and info.length < kv.block_size and info.owners == 1:
                plan["rows"].append(row)
                plan["blocks"].append(info.block_index)
                plan["slots"].append(info.length)
                infos[row] = info

        if infos:
            at = {name: index_tensor(numbers, kv.device) for name, numbers in plan.items()}
            for name in cache:
                picked = new[name].index_select(0, at["rows"])
                cache[name][at["blocks"], :, at["slots"]] = picked
            for info in infos.values():
                info.length += 1

        for row, ids in enumerate(block_ids_list):
            if row not in infos:
                kv.append_token(layer_idx, ids, *(rows[row] for rows in new.values()))
