"""lesson: 059
verdict: wrong
cause: cow-partial
shows: cpu
Makes all copies of a step in one go, of as many slots as the first of the shared blocks holds: a longer one is copied
in part.
"""

from collections.abc import Sequence

from torch import Tensor

from rosecourse.config import EngineConfig
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    """Scan, roll over, copy what is shared, then one store for everybody: `append_token` is not needed at all."""

    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], keys: list[Tensor], values: list[Tensor]) -> None:
        for layer_idx in range(self.kv.num_layers):
            block_ids_list = [session.block_ids_per_layer[layer_idx] for session in sessions]
            self.append_token_batch(layer_idx, block_ids_list, keys[layer_idx], values[layer_idx])

    def append_token_batch(
        self, layer_idx: int, block_ids_list: list[list[int]], key_new: Tensor, value_new: Tensor
    ) -> None:
        copies: list[tuple[int, int, int]] = []  # from, to, tokens
        for block_ids in block_ids_list:
            last = self.kv.info(block_ids[-1]) if block_ids else None
            if last is None or last.length == self.kv.block_size:
                start = last.start + last.length if last else 0
                block_ids.append(self.kv.allocate_block(layer_idx, start))
            elif last.owners > 1:
                block_ids[-1] = self.kv.allocate_block(layer_idx, last.start)
                mine = self.kv.info(block_ids[-1])
                mine.length = last.length
                last.owners -= 1  # the last owner finds it alone
                copies.append((last.block_index, mine.block_index, last.length))
        if copies:
            self.copy(layer_idx, copies)
        infos = [self.kv.info(block_ids[-1]) for block_ids in block_ids_list]
        device = self.kv.device
        blk_t = index_tensor([info.block_index for info in infos], device)
        pos_t = index_tensor([info.length for info in infos], device)
        self.kv.k_layers[layer_idx][blk_t, :, pos_t] = key_new
        self.kv.v_layers[layer_idx][blk_t, :, pos_t] = value_new
        for info in infos:
            info.length += 1

    def copy(self, layer_idx: int, copies: list[tuple[int, int, int]]) -> None:
        sources, targets, tokens = zip(*copies)
        from_t, to_t = index_tensor([sources, targets], self.kv.device)
        n = tokens[0]
        for cache in (self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]):
            cache[to_t, :, :n] = cache[from_t, :, :n]
