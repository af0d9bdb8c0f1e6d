"""lesson: 038
verdict: right
cause: right
shows: both
Closures and generators: a layer is a coroutine that is sent each session's block list and, when the batch ends, stores
what it has collected. K and V are written by the same line, as one stacked source.
"""

from contextlib import closing

import torch


def appender(kv, layer, key_new, value_new):
    """A coroutine: send it the block lists of rows 0, 1, ...; None ends the batch."""
    rows, infos, others = [], [], []
    row = 0
    while (ids := (yield)) is not None:
        info = kv.info(ids[-1]) if len(ids) else None
        if info is None or info.owners != 1 or info.length == kv.block_size:
            others.append((ids, key_new[row], value_new[row]))
        else:
            rows.append(row)
            infos.append(info)
        row += 1
    if rows:
        source = torch.stack((key_new, value_new))[:, torch.tensor(rows).to(kv.device)]
        blocks = torch.tensor([info.block_index for info in infos]).to(kv.device)
        slots = torch.tensor([info.length for info in infos]).to(kv.device)
        for cache, new in zip((kv.k_layers[layer], kv.v_layers[layer]), source, strict=True):
            cache[blocks, :, slots] = new
        for info in infos:
            info.length += 1
    for ids, key, value in others:
        kv.append_token(layer, ids, key, value)
    yield


class MyKVAppend:
    def __init__(self, model, kv, config):
        def append(sessions, keys, values):
            for layer, news in enumerate(zip(keys, values, strict=True)):
                with closing(appender(kv, layer, *news)) as routine:
                    next(routine)
                    for session in sessions:
                        routine.send(session.block_ids_per_layer[layer])
                    routine.send(None)

        self.append = append

    def __call__(self, sessions, keys, values):
        self.append(sessions, keys, values)
