"""Parts that are right, and written otherwise than the course's: `check` has to let them pass."""

import inspect
import sys

import torch

from rosecourse.kernels import TRITON_AVAILABLE, kv_append_triton, kv_append_triton_full_batch, triton_runs_on

if TRITON_AVAILABLE:
    import triton
    import triton.language as tl

    @triton.jit
    def write_rows(
        k, v, key, value, rows, firsts, k_stride, v_stride, SIZE: tl.constexpr, HD: tl.constexpr, D: tl.constexpr
    ):
        i, hd = tl.program_id(0), tl.arange(0, triton.next_power_of_2(HD))
        row = tl.load(rows + i)
        target = tl.load(firsts + i) * D + hd // D * SIZE * D + hd % D
        tl.store(k + target, tl.load(key + row * k_stride + hd, hd < HD), hd < HD)
        tl.store(v + target, tl.load(value + row * v_stride + hd, hd < HD), hd < HD)


# -- 036 --------------------------------------------------------------------------------------------------------------


class NumpyRows:
    """Rows are NumPy arrays, kept on the table; a changed signature is followed from the last block known on."""

    def __init__(self, model, kv, config):
        self.kv, self.width = kv, config.max_blocks

    def __call__(self, sessions):
        out = torch.zeros(self.kv.num_layers, len(sessions), self.width, dtype=torch.int32)
        view = out.numpy()
        for b, session in enumerate(sessions):
            table = session.block_ids_per_layer
            if table.row_cache is None:
                rows = torch.zeros(self.kv.num_layers, self.width, dtype=torch.int32).numpy()
                table.row_cache = [((0, []), row) for row in rows]
            for layer, ids in enumerate(table):
                signature, row = table.row_cache[layer]
                if signature != (len(ids), ids[-1:]):
                    start = max(0, signature[0] - 1)
                    row[start : len(ids)] = [i % self.kv.num_blocks for i in ids[start:]]
                    table.row_cache[layer] = ((len(ids), ids[-1:]), row)
                view[layer, b] = row
        return out.to(self.kv.device)


class RowsByTable:
    """A dict from the table object, which it keeps alive, to one tensor of all layers."""

    def __init__(self, model, kv, config):
        self.kv, self.width, self.rows = kv, config.max_blocks, {}

    def __call__(self, sessions):
        return torch.stack([self.of(session.block_ids_per_layer) for session in sessions], dim=1).to(self.kv.device)

    def of(self, table):
        signature = [(len(ids), ids[-1] if ids else None) for ids in table]
        kept = self.rows.setdefault(id(table), [table, [(0, None)] * len(table), self.no_blocks()])
        if kept[1] != signature:
            for layer, (ids, (known, _)) in enumerate(zip(table, kept[1], strict=True)):
                self.write(kept[2], layer, ids, max(0, known - 1))
            kept[1] = signature
        return kept[2]

    def no_blocks(self):
        return torch.zeros(self.kv.num_layers, self.width, dtype=torch.int32)

    def write(self, rows, layer, ids, start):
        rows[layer, start : len(ids)] = torch.tensor([i - layer * self.kv.num_blocks for i in ids[start:]])


class CarefulRows(RowsByTable):
    """By session, but the whole list is the signature: it need not be told that a table is another one."""

    def __call__(self, sessions):
        tables = [self.of_session(session) for session in sessions]
        return torch.stack(tables).transpose(0, 1).contiguous().to(self.kv.device)

    def of_session(self, session):
        kept = self.rows.setdefault(id(session), [[()] * self.kv.num_layers, self.no_blocks()])
        for layer, ids in enumerate(session.block_ids_per_layer):
            known, kept[0][layer] = kept[0][layer], tuple(ids)
            if known != kept[0][layer]:
                same = next((n for n, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), len(known))
                self.write(kept[1], layer, ids, min(same, len(ids)))
                kept[1][layer, len(ids) :] = 0
        return kept[1]


# -- 038 to 061 -------------------------------------------------------------------------------------------------------


class PlanThenWrite:
    """The blocks of all layers are found first, then everything is written. Subclasses say how."""

    def __init__(self, model, kv, config):
        self.kv, self.config = kv, config

    def __call__(self, sessions, keys, values):
        plans = [self.plan(layer, sessions, keys, values) for layer in range(self.kv.num_layers)]
        self.write_all(plans, keys, values)
        for _, infos in plans:
            for info in infos:
                info.length += 1

    def plan(self, layer, sessions, keys, values):
        rows, infos, shared = [], [], []
        for b, session in enumerate(sessions):
            ids = session.block_ids_per_layer[layer]
            end = self.kv.info(ids[-1]) if ids else None
            if end is None or end.length == self.kv.block_size:
                ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))
                end = self.kv.info(ids[-1])
            if end.owners > 1:
                shared.append(b)
            else:
                rows.append(b)
                infos.append(end)
        for b in shared:
            self.kv.append_token(layer, sessions[b].block_ids_per_layer[layer], keys[layer][b], values[layer][b])
        return rows, infos

    def write_all(self, plans, keys, values):
        for layer, (rows, infos) in enumerate(plans):
            if rows:
                whole = len(rows) == len(keys[layer])
                at = slice(None) if whole else torch.tensor(rows, device=self.kv.device)
                self.write(layer, infos, keys[layer][at], values[layer][at])


class IndexPut(PlanThenWrite):
    """torch.index_put_ on the cache with its dimensions in another order; a view for a constant slot."""

    def write(self, layer, infos, key, value):
        blocks = torch.tensor([info.block_index for info in infos], device=self.kv.device)
        slots = [info.length for info in infos]
        constant = len(set(slots)) == 1
        at = None if constant else torch.tensor(slots, device=self.kv.device)
        for cache, new in ((self.kv.k_layers[layer], key), (self.kv.v_layers[layer], value)):
            if constant:
                cache[:, :, slots[0]].index_put_((blocks,), new)
            else:
                cache.transpose(1, 2).index_put_((blocks, at), new)


class FlatIndexCopy(PlanThenWrite):
    """index_copy_ into the cache seen as rows [num_blocks * H * block_size, D]."""

    def write(self, layer, infos, key, value):
        _, heads, size, dim = self.kv.k_layers[layer].shape
        first = torch.tensor([i.block_index * heads * size + i.length for i in infos], device=self.kv.device)
        rows = (first[:, None] + torch.arange(heads, device=self.kv.device) * size).flatten()
        self.kv.k_layers[layer].view(-1, dim).index_copy_(0, rows, key.reshape(-1, dim))
        self.kv.v_layers[layer].view(-1, dim).index_copy_(0, rows, value.reshape(-1, dim))


class Scatter(PlanThenWrite):
    """scatter_ into the same rows."""

    def write(self, layer, infos, key, value):
        _, heads, size, dim = self.kv.k_layers[layer].shape
        first = torch.tensor([i.block_index * heads * size + i.length for i in infos], device=self.kv.device)
        rows = (first[:, None] + torch.arange(heads, device=self.kv.device) * size).view(-1, 1).expand(-1, dim)
        self.kv.k_layers[layer].view(-1, dim).scatter_(0, rows, key.reshape(-1, dim))
        self.kv.v_layers[layer].view(-1, dim).scatter_(0, rows, value.reshape(-1, dim))


class PlannedKernels(IndexPut):
    """One tensor with the blocks of all layers, then a kernel for each layer; small batches as above."""

    def write_all(self, plans, keys, values):
        n = len(plans[0][0])
        slots = [info.length for info in plans[0][1]]
        whole = n == len(keys[0]) and len(set(slots)) == 1
        least = self.config.triton_kv_append_min_batch
        least_whole = self.config.triton_kv_append_full_batch_min_batch or least
        if not triton_runs_on(self.kv.device) or n == 0 or (n < (least_whole if whole else least) and n < least):
            return super().write_all(plans, keys, values)
        places = torch.tensor([[info.block_index for info in infos] for _, infos in plans], device=self.kv.device)
        if whole and n >= least_whole:
            for layer, blocks in enumerate(places):
                self.launch(kv_append_triton_full_batch, layer, keys, values, blocks, slots[0])
        else:
            rows, at = torch.tensor([plans[0][0], slots], device=self.kv.device)
            for layer, blocks in enumerate(places):
                self.launch(kv_append_triton, layer, keys, values, rows, blocks, at)

    def launch(self, kernel, layer, keys, values, *where):
        kernel(self.kv.k_layers[layer], self.kv.v_layers[layer], keys[layer], values[layer], *where)


class OwnKernel(IndexPut):
    """One kernel of its own for all batches that the gates let in; it is given rows and first elements."""

    def write_all(self, plans, keys, values):
        for layer, (rows, infos) in enumerate(plans):
            least = self.config.triton_kv_append_min_batch
            if len(rows) == len(keys[0]) and len({info.length for info in infos}) == 1:
                least = min(least, self.config.triton_kv_append_full_batch_min_batch or least)
            if not triton_runs_on(self.kv.device) or len(rows) < max(1, least):
                super().write_all([([], [])] * layer + [(rows, infos)], keys, values)
            else:
                self.launch(layer, rows, infos, keys[layer], values[layer])

    def launch(self, layer, rows, infos, key, value):
        _, heads, size, dim = self.kv.k_layers[layer].shape
        firsts = [info.block_index * heads * size + info.length for info in infos]
        where = torch.tensor([rows, firsts], device=self.kv.device)
        caches = self.kv.k_layers[layer], self.kv.v_layers[layer]
        sizes = key.stride(0), value.stride(0), size, heads * dim, dim
        write_rows[(len(rows),)](*caches, key, value, where[0], where[1], *sizes)


def delegating(part):
    """A part that has an object of another class do its work."""

    class Delegating:
        def __init__(self, model, kv, config):
            self.other = part(model, kv, config)

        def __call__(self, *arguments):
            return self.other(*arguments)

    return Delegating


def copied(part):
    """The same part, written once more by somebody else."""
    names = dict(vars(sys.modules[part.__module__]))
    exec(compile(inspect.getsource(part), f"<{part.__name__}, copied>", "exec"), names)
    return names[part.__name__]


RIGHT = {
    "036": [NumpyRows, RowsByTable, CarefulRows],
    "038": [IndexPut, FlatIndexCopy, Scatter],
    "059": [IndexPut, FlatIndexCopy, Scatter],
    "060": [IndexPut],  # the others copy rows that are no neighbours in memory
    "061": [OwnKernel],
}
