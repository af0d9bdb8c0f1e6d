"""What is said about each exercise: its task, its sub-goals, its hints, how hard it is and how long it takes.

The code that these words stand beside comes from the ladder's sources, in `lab/exercises.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Task:
    """One exercise.

    name: of the learner's class. difficulty: 1 to 3. minutes: of a reader who has come so far. text: markdown above
    the cell. docstring: of the class. goals: a line of the exercise -> the comment above it. look, do: the first two
    hints, markdown. stubs, functions: methods and functions that the lesson brings -> their bodies until they are
    written. wanted: imports that only the written part uses. kernels: of the solution -> how they are decorated;
    launches: functions that launch them -> their bodies.
    """

    name: str
    difficulty: int
    minutes: int
    text: str
    docstring: str
    goals: Mapping[str, str]
    look: str
    do: str
    stubs: Mapping[str, str] = field(default_factory=dict)
    functions: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    kernels: Mapping[str, str] = field(default_factory=dict)
    launches: Mapping[str, str] = field(default_factory=dict)


TASKS = {
    "036": Task(
        name="MyBlockTables",
        difficulty=2,
        minutes=25,
        text=(
            "Build the rows of the block tables only when they change. As it stands, the cell runs and gives the "
            "right tables: it builds every row at every step. It stays right after each of the four steps; after the "
            "first alone it makes *more* tensors than before, and the others bring them down."
        ),
        docstring=(
            "Where, for each layer and session, the blocks lie: int32 [L, B, max_blocks].\n\n"
            "Now it builds every row at every step. Make it keep each row, and build one only when its signature "
            "changes. What is kept belongs to the session's block table: `table.row_cache`, which is None for a "
            "new table."
        ),
        goals={
            "rows: list[list[int]] = []": (
                "1. gather: ask `get_paged_block_table_row_cpu` for each session's row, and put the rows of a "
                "layer together with one `torch.stack(..., out=...)`"
            ),
            "ids = table[layer_idx]": (
                "2. keep: if `table.row_cache` is still None, put an empty row and a signature that no list has "
                "into it, for each layer"
            ),
            "row = torch.zeros(self.max_blocks, dtype=torch.int32)": (
                "3. compare: while the signature of `ids` is the one that was kept, the kept row is right (a list "
                "without a block has no last id)"
            ),
            "return row": "4. remember: the row and its signature, for the next step",
        },
        look=(
            "`session.block_ids_per_layer` is a `BlockTable`: a list of lists with one more attribute, "
            "`row_cache`. Look at the table with the column *signature* above: in which steps does it change, "
            "and which entries of the row have changed by then?"
        ),
        do=(
            "* Step 1: a list of B tensors `[max_blocks]`; `torch.stack(rows, out=block_tables_cpu[layer_idx])`.\n"
            "* Step 2: `table.row_cache` holds, for each layer, a pair: the row (int32, zeros) and its "
            "signature. `(-1, -1)` is a signature that no list has.\n"
            "* Step 3: the signature is `(number of ids, last id)`. A rollover changes both, a copy-on-write only the "
            "second: the number alone is not enough. (The last id alone would do; the number says besides where to "
            "begin writing.)\n"
            "* Step 4: write the new ids into the kept row, from the last one that it had: what lies before "
            "cannot change. Through `row.numpy()` a slice can be written from a list without a tensor."
        ),
        stubs={
            "get_paged_block_table_row_cpu": """
                ids = table[layer_idx]
                row = torch.zeros(self.max_blocks, dtype=torch.int32)
                row[: len(ids)] = torch.tensor([block_id - offset for block_id in ids], dtype=torch.int32)
                return row
                """,
        },
    ),
    "038": Task(
        name="MyKVAppend",
        difficulty=2,
        minutes=30,
        text=(
            "Append a layer's whole batch at once. As it stands, the cell runs and is right: it calls "
            "`append_token` for every layer and every session. Steps 1 and 2 belong together; it is right before "
            "and after step 3."
        ),
        docstring=(
            "Put the new token's K and V into the cache.\n\n"
            "Now it makes L x B calls of `append_token` in a step. Make `append_token_batch` write all that is "
            "simple with one indexed store for K and one for V, and leave only the rest to `append_token`."
        ),
        goals={
            "for b, block_ids in enumerate(block_ids_list):": (
                "1. scan: who has a last block with a free slot, and for himself alone? They go to `write`, "
                "together; all others to `append_token`, one by one"
            ),
            "self.kv.append_token(layer_idx, block_ids, key_new[b], value_new[b])": (
                "2. who counts the tokens? `append_token` raises the `length` of a block by itself, `write` does not. "
                "And is there anybody to write?"
            ),
            "for b, info in zip(batch_idx, infos, strict=True):": (
                "3. store: the loop as one indexed store for K and one for V, with three index tensors: rows of "
                "the batch, blocks, slots (`index_tensor(numbers, self.kv.device)` makes one of a list)"
            ),
        },
        look=(
            "`kind_of_append` above tells four kinds apart. `self.kv.info(block_ids[-1])` says of a session's "
            "last block where it is (`block_index`), how many tokens it holds (`length`) and how many sessions "
            "own it (`owners`). Which of these decide that an append is only a write into the next slot?"
        ),
        do=(
            "* Step 1: three lists: the batch rows and the infos of the fast ones, the batch rows of the slow "
            "ones. Slow is: no block yet, a full one, or one with several owners.\n"
            "* Step 2: call `write` only if there is a fast one; then raise `length` of *their* blocks. The slow "
            "ones are known by their row `b` in the batch: their K is `key_new[b]`.\n"
            "* Step 3: `index_tensor(list, self.kv.device)` makes an index tensor. `key_new.index_select(0, "
            "rows)` are the K of the fast ones, and `k_layer[blocks, :, slots]` is where they go."
        ),
        stubs={
            "write": """
                for b, info in zip(batch_idx, infos, strict=True):
                    self.kv.k_layers[layer_idx][info.block_index, :, info.length] = key_new[b]
                    self.kv.v_layers[layer_idx][info.block_index, :, info.length] = value_new[b]
                """,
        },
        wanted=("index_tensor",),
    ),
    "059": Task(
        name="MyKVAppend",
        difficulty=1,
        minutes=15,
        text=(
            "Keep a request whose last block is full in the batch. As it stands, the cell runs and is right: a "
            "full block goes the slow way. `self.kv.allocate_block(layer_idx, start)` gives the id of an empty block "
            "with one owner; `start` is the position, in its sequence, of the first token that goes into it."
        ),
        docstring=(
            "Put the new token's K and V into the cache.\n\n"
            "Now a session whose last block is full goes to `append_token`, alone. Make it roll over in the "
            "scan, so that only copies are left for the slow path."
        ),
        goals={
            "if info is None or info.length == self.kv.block_size or info.owners > 1:": (
                "1. roll over: no block yet, or a full one? Then a new block at the end of the session's list, "
                "and go on with that one"
            ),
            "slow_batch_idx.append(b)  # a new block, or a copy": (
                "2. what is left for the slow path? Mind the order of the two questions, *is it full* and *is it "
                "shared*"
            ),
        },
        look=(
            "`self.kv.append_token` begins a new block too: what does it give to `allocate_block`? And which "
            "block does `write` use, the one that `info` was before the rollover or the one after it?"
        ),
        do=(
            "* `self.kv.allocate_block(layer_idx, start)` gives the id of an empty block with one owner. `start` "
            "is the position of its first token: where the full block begins, plus its length; 0 if there is "
            "none.\n"
            "* Append the id to `block_ids`: that is the session's own list, so change it in place.\n"
            "* Ask `self.kv.info` again, for the new block. Only then ask for its owners."
        ),
    ),
    "060": Task(
        name="MyKVAppend",
        difficulty=1,
        minutes=15,
        text=(
            "Leave out the index tensors that say nothing. As it stands, the cell runs and is right: it makes "
            "three index tensors and two selections a layer."
        ),
        docstring=(
            "Put the new token's K and V into the cache.\n\n"
            "Now `write` makes three index tensors and selects rows of K and V in every layer. Make it leave out "
            "the selection where the batch is whole, and the tensor of positions where all positions are the "
            "same."
        ),
        goals={
            "idx_t = index_tensor(batch_idx, device)": (
                "1. is the batch whole? Then there is nothing to select, and no tensor of rows to make"
            ),
            "pos_t = index_tensor([info.length for info in infos], device)": (
                "2. is the position constant? Then a number will do. Look at every position"
            ),
            "k_layer[blk_t, :, pos_t] = key_new.index_select(0, idx_t)": (
                "3. store, in each of the four combinations of 1 and 2"
            ),
        },
        look=(
            "The scan goes through the batch in order, so `batch_idx` ascends. How many entries must it have, "
            "then, to be `[0, 1, …, B−1]`? And `pos_t` in the cell with the four kinds of traffic: which batch "
            "has all positions alike although the requests have different lengths?"
        ),
        do=(
            "* Step 1: compare `len(batch_idx)` with `len(key_new)`; else `index_select` as before.\n"
            "* Step 2: `infos[...].length` of *all* of them. Taking the first for all is right for a benchmark, "
            "and wrong.\n"
            "* Step 3: `k_layer[blk_t, :, slots] = key_new`, where `slots` is a number or a tensor, and "
            "`key_new` all rows or the selected ones: the two choices are independent."
        ),
    ),
    "061": Task(
        name="MyKVAppend",
        difficulty=3,
        minutes=40,
        text=(
            "First the gate (15 minutes): when may the full-batch kernel run? Until you write it, the function "
            "in the cell calls the course's kernel, so that the gate can be checked by itself. Then the kernel "
            "(25 minutes): your own, after the pattern of the generic one above; of the arguments of its decorator "
            'yours needs `do_not_specialize=["pos"]` (trap 2 below says why). As it stands, the cell runs and is '
            "right: no kernel is launched."
        ),
        docstring=(
            "Put the new token's K and V into the cache.\n\n"
            "Now it writes with indexed stores only. Make it launch `kv_append_triton_full_batch` for a large, "
            "whole batch with a constant position, and `kv_append_triton` for any other large one."
        ),
        goals={
            "self.kv = kv": (
                "1. what the gates ask for: does Triton run on `kv.device`, and from how many sessions on "
                "(`triton_kv_append_min_batch` and `triton_kv_append_full_batch_min_batch` of `config`; None is "
                "the former)"
            ),
            "if not full_fast:": (
                "2. gates: the special kernel where all of its conditions hold; else the generic one, from its "
                "threshold on; else the indexed stores below. One way, then return"
            ),
            "kernels.kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos)": (
                "3. your kernel: a function with @triton.jit above this one, and its launch here: one program "
                "for each session. It is told the caches, K and V, `block_idx`, `pos`, and how far two rows of K "
                "and of V are apart"
            ),
        },
        look=(
            "`full_fast`, `const_pos` and `n` are there already, or nearly: they are what lesson 060 computes. "
            "The generic kernel needs three index tensors, the special one only the blocks. In the generic "
            "kernel, which lines use `batch_idx_ptr` and `pos_ptr`?"
        ),
        do=(
            "* Step 1: `triton_runs_on(kv.device)`, and two numbers of `config`; `None or x` is `x`.\n"
            "* Step 2: four conditions for the special kernel: Triton runs, the batch is whole, the position is "
            "constant, and it is large enough. The generic one takes `idx_t, blk_t, pos_t`, and needs only the "
            "first and the last.\n"
            "* Step 3: from the generic kernel: the row is the number of the program; the slot is `pos`, for "
            'all. Cast the block to `tl.int64` before you multiply. `@triton.jit(do_not_specialize=["pos"])`, or '
            "it is compiled anew. It is launched as `kernel[(len(block_idx),)](..., H=H, D=D, "
            "BLOCK_SIZE=block_size, BLOCK_HD=triton.next_power_of_2(H * D))`: constants by name, the rest in order."
        ),
        functions={
            "kv_append_triton_full_batch": """
                kernels.kv_append_triton_full_batch(k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos)
                """,
        },
        wanted=(
            "kv_append_triton",
            "triton_runs_on",
            "triton",
            "tl",
        ),
        kernels={"_kv_append_full_batch_kernel": '@triton.jit(do_not_specialize=["pos"])'},
        launches={
            "kv_append_triton_full_batch": """
                _, H, block_size, D = k_cache_layer.shape
                _kv_append_full_batch_kernel[(len(block_idx),)](
                    k_cache_layer, v_cache_layer, key_new, value_new, block_idx, pos,
                    key_new.stride(0), value_new.stride(0),
                    H=H, D=D, BLOCK_SIZE=block_size, BLOCK_HD=triton.next_power_of_2(H * D),
                )  # fmt: skip
                """,
        },
    ),
}
