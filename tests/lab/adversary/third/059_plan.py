"""lesson: 059
verdict: right
cause: right
shows: cpu
The scan gives a plan, which is a dataclass that collects rows; the store goes through a view with the slot next to the
block, so that one `index_put_` with two indices takes [n, H, D]. A session that begins a block is a row like the others.
"""

from dataclasses import dataclass, field

from rosecourse.kv.buffers import index_tensor


@dataclass
class Plan:
    rows: list = field(default_factory=list)
    blocks: list = field(default_factory=list)
    slots: list = field(default_factory=list)
    infos: list = field(default_factory=list)
    copies: list = field(default_factory=list)

    def add(self, b, info):
        self.rows += [b]
        self.blocks += [info.block_index]
        self.slots += [info.length]
        self.infos += [info]

    def carry_out(self, k_layer, v_layer, key_new, value_new, device):
        if not self.rows:
            return
        take, block, slot = index_tensor([self.rows, self.blocks, self.slots], device)
        for cache, new in zip((k_layer, v_layer), (key_new, value_new)):
            cache.transpose(1, 2).index_put_((block, slot), new[take])
        for info in self.infos:
            info.length += 1


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        for layer_idx in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, lists, keys[layer_idx], values[layer_idx])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        kv, plan = self.kv, Plan()
        for b, block_ids in enumerate(block_ids_list):
            match [kv.info(i) for i in block_ids[-1:]]:
                case [last] if last.length < kv.block_size and last.owners > 1:
                    plan.copies.append(b)
                    continue
                case [last] if last.length == kv.block_size:
                    block_ids += [kv.allocate_block(layer_idx, last.start + kv.block_size)]
                case []:
                    block_ids += [kv.allocate_block(layer_idx)]
            plan.add(b, kv.info(block_ids[-1]))
        plan.carry_out(kv.k_layers[layer_idx], kv.v_layers[layer_idx], key_new, value_new, kv.device)
        for b in plan.copies:
            kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])
