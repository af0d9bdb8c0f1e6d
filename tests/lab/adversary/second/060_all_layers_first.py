"""lesson: 060
verdict: right
cause: right
shows: cpu
The books of all layers are kept first; all blocks, and rows and slots where they are needed, travel in one tensor a step.
"""

from rosecourse.kv.buffers import index_tensor


class Job:
    """What is to be written in one layer."""

    def __init__(self, layer_idx, tables, key_new, value_new):
        self.layer_idx, self.tables = layer_idx, tables
        self.key_new, self.value_new = key_new, value_new
        self.rows, self.infos, self.shared = [], [], []

    def numbers(self):
        """The lists of numbers that the write cannot do without: blocks; rows, unless all; slots, unless one."""
        slots = [info.length for info in self.infos]
        self.slot = slots[0] if len(set(slots)) == 1 else None
        self.whole = not self.shared
        yield [info.block_index for info in self.infos]
        if not self.whole:
            yield self.rows
        if self.slot is None:
            yield slots


class MyKVAppend:
    def __init__(self, model, kv, config):
        self.kv = kv

    def __call__(self, sessions, keys, values):
        tables = [session.block_ids_per_layer for session in sessions]
        layers = range(self.kv.num_layers)
        self.append([Job(i, [table[i] for table in tables], keys[i], values[i]) for i in layers])

    def append_token_batch(self, layer_idx, block_ids_list, key_new, value_new):
        """Append one token to each of B sessions in one layer; key_new, value_new: [B, H, D]."""
        self.append([Job(layer_idx, block_ids_list, key_new, value_new)])

    def append(self, jobs):
        for job in jobs:
            self.make_room(job)
        lists = [(job, list(job.numbers())) for job in jobs if job.infos]
        if lists:
            flat = index_tensor([n for _, several in lists for one in several for n in one], self.kv.device)
            parts = iter(flat.split([len(one) for _, several in lists for one in several]))
            for job, several in lists:
                self.write(job, *[next(parts) for _ in several])
        for job in jobs:
            for info in job.infos:
                info.length += 1
            for b in job.shared:
                self.kv.append_token(job.layer_idx, job.tables[b], job.key_new[b], job.value_new[b])

    def make_room(self, job):
        kv = self.kv
        for b, table in enumerate(job.tables):
            info = kv.info(table[-1]) if table else None
            if info is None or info.length == kv.block_size:
                table += [kv.allocate_block(job.layer_idx, info.start + info.length if info else 0)]
                info = kv.info(table[-1])
            if info.owners > 1:
                job.shared.append(b)
            else:
                job.rows.append(b)
                job.infos.append(info)

    def write(self, job, blocks, *others):
        others = iter(others)
        rows = None if job.whole else next(others)
        slots = next(others) if job.slot is None else job.slot
        for layers, new in ((self.kv.k_layers, job.key_new), (self.kv.v_layers, job.value_new)):
            layers[job.layer_idx][blocks, :, slots] = new if rows is None else new.index_select(0, rows)
