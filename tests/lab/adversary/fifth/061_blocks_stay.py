"""lesson: 061
verdict: wrong
cause: state-kept
shows: cpu
For the full-batch kernel the part keeps the index tensor of the blocks of each layer, and makes it anew only at slot 0 or for another number of sessions.
If other sessions come with the same number in the middle of a block (or the same ones in another order, or after a copy), their K and V go to the blocks of the earlier ones.
"""
import triton
import triton.language as tl

from rosecourse.kernels import kv_append_triton, triton_runs_on
from rosecourse.kv.buffers import index_tensor


@triton.jit(do_not_specialize=["pos", "k_row", "v_row"])
def _write_batch(
    k_cache, v_cache, k_new, v_new, block_idx, pos, k_row, v_row,
    H: tl.constexpr, D: tl.constexpr, SLOTS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, LANES)
    real = i < H * D
    block = tl.load(block_idx + b).to(tl.int64)
    address = block * H * SLOTS * D + (i // D) * SLOTS * D + pos * D + i % D
    tl.store(k_cache + address, tl.load(k_new + b * k_row + i, mask=real), mask=real)
    tl.store(v_cache + address, tl.load(v_new + b * v_row + i, mask=real), mask=real)


def kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos):
    H, slots, D = k_cache_layer.shape[1:]
    _write_batch[(len(block_idx),)](
        k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
        key_new.stride(0), value_new.stride(0),
        H=H, D=D, SLOTS=slots, LANES=triton.next_power_of_2(H * D),
    )  # fmt: skip


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv
        self.triton = triton_runs_on(kv.device)
        self.min_batch = config.triton_kv_append_min_batch
        self.min_full_batch = config.triton_kv_append_full_batch_min_batch or self.min_batch
        self.blocks = {}  # layer -> the blocks of the batch, on the device

    def __call__(self, sessions, keys, values):
        for layer in range(self.kv.num_layers):
            lists = [session.block_ids_per_layer[layer] for session in sessions]
            self.append_token_batch(layer, lists, keys[layer], values[layer])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        batch_idx, infos, copies = [], [], []
        for b, block_ids in enumerate(block_ids_list):
            info = self.kv.info(block_ids[-1]) if block_ids else None
            if info is None or info.length == self.kv.block_size:
                block_ids.append(
                    self.kv.allocate_block(layer_idx, 0 if info is None else info.start + info.length)
                )
                info = self.kv.info(block_ids[-1])
            if info.owners == 1:
                batch_idx.append(b)
                infos.append(info)
            else:
                copies.append(b)
        if infos:
            self.write(layer_idx, batch_idx, infos, key_new, value_new)
            for info in infos:
                info.length += 1
        for b in copies:
            self.kv.append_token(layer_idx, block_ids_list[b], key_new[b], value_new[b])

    def blocks_of_batch(self, layer_idx, infos):
        """A whole batch at one position gets other blocks only when it begins them, at slot 0."""
        known = self.blocks.get(layer_idx)
        if known is None or len(known) != len(infos) or infos[0].length == 0:
            known = index_tensor([info.block_index for info in infos], self.kv.device)
            self.blocks[layer_idx] = known
        return known

    def write(self, layer_idx, batch_idx, infos, key_new, value_new):
        device, n = self.kv.device, len(infos)
        k_layer, v_layer = self.kv.k_layers[layer_idx], self.kv.v_layers[layer_idx]
        whole = n == len(key_new)
        positions = [info.length for info in infos]
        constant = all(pos == positions[0] for pos in positions)
        if self.triton and whole and constant and n >= self.min_full_batch:
            blocks = self.blocks_of_batch(layer_idx, infos)
            kv_append_triton_full_batch(k_layer, v_layer, key_new, value_new, blocks, positions[0])
            return
        blocks = index_tensor([info.block_index for info in infos], device)
        if self.triton and n >= self.min_batch:
            rows, slots = index_tensor([batch_idx, positions], device)
            kv_append_triton(k_layer, v_layer, key_new, value_new, rows, blocks, slots)
            return
        if not whole:
            rows = index_tensor(batch_idx, device)
            key_new, value_new = key_new.index_select(0, rows), value_new.index_select(0, rows)
        slots = positions[0] if constant else index_tensor(positions, device)
        k_layer[blocks, :, slots] = key_new
        v_layer[blocks, :, slots] = value_new
