"""lesson: 038
verdict: wrong
cause: interface
shows: cpu
Takes the outputs of the forward as one argument, as the step's docstring sketches it, where the step hands over keys and values.
"""

from collections.abc import Sequence

from rosecourse.config import EngineConfig
from rosecourse.decode.inputs import DecodeOutputs
from rosecourse.lessons.l035_blocks import KVBlockManager
from rosecourse.kv.buffers import index_tensor
from rosecourse.models.shape import Model
from rosecourse.request.session import InferenceSession


class MyKVAppend:
    def __init__(self, model: Model, kv: KVBlockManager, config: EngineConfig) -> None:
        self.kv = kv

    def __call__(self, sessions: Sequence[InferenceSession], outputs: DecodeOutputs) -> None:
        for layer_idx, (key_new, value_new) in enumerate(zip(outputs.keys, outputs.values, strict=True)):
            tables = [session.block_ids_per_layer[layer_idx] for session in sessions]
            fast, slow = [], []
            for b, table in enumerate(tables):
                info = self.kv.info(table[-1]) if table else None
                simple = info is not None and info.length < self.kv.block_size and info.owners == 1
                (fast if simple else slow).append(b)
            if fast:
                infos = [self.kv.info(tables[b][-1]) for b in fast]
                idx = index_tensor(fast, self.kv.device)
                blk = index_tensor([info.block_index for info in infos], self.kv.device)
                pos = index_tensor([info.length for info in infos], self.kv.device)
                self.kv.k_layers[layer_idx][blk, :, pos] = key_new[idx]
                self.kv.v_layers[layer_idx][blk, :, pos] = value_new[idx]
                for info in infos:
                    info.length += 1
            for b in slow:
                self.kv.append_token(layer_idx, tables[b], key_new[b], value_new[b])
