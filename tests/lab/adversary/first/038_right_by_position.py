"""lesson: 038
verdict: right
cause: right
shows: both
Takes block and slot from `divmod(num_cached_tokens, block_size)`, which is the position of the new token; a position
behind the session's blocks, or in a shared block, is left to `append_token`.
"""

from functools import partial

from torch import Tensor

from rosecourse.kv.buffers import index_tensor


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.index = partial(index_tensor, device=kv.device)

    def __call__(self, sessions, keys: list[Tensor], values: list[Tensor]):
        places = [divmod(session.num_cached_tokens, self.kv.block_size) for session in sessions]
        for layer in range(self.kv.num_layers):
            todo = {}
            for b, (session, (logical, slot)) in enumerate(zip(sessions, places, strict=True)):
                ids = session.block_ids_per_layer[layer]
                if logical < len(ids) and self.kv.info(ids[logical]).owners == 1:
                    todo[b] = ids[logical], slot
            if todo:
                at = self.index([[self.kv.block_index(block_id), slot, b] for b, (block_id, slot) in todo.items()])
                blocks, slots, rows = at.unbind(-1)
                self.kv.write_tokens(layer, blocks, slots, keys[layer][rows], values[layer][rows])
            for block_id, slot in todo.values():
                self.kv.info(block_id).length = slot + 1
            for b in [b for b in range(len(sessions)) if b not in todo]:
                self.kv.append_token(layer, sessions[b].block_ids_per_layer[layer], keys[layer][b], values[layer][b])
