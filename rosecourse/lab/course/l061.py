"""Lesson 061, the Triton full-batch append: one launch a layer, and a kernel with few arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...config import EngineConfig
from ...engine.engine import InferenceEngine
from ...models.shape import Model
from ..world.oracle import Oracle
from ..world.pool import Tracked
from ..world.situations import Situation, always, any_blocks, gated, half_full, of, same_slot
from ..world.worlds import KV_APPEND
from .costs import COPIES, INDEX_TENSORS, LAUNCHES, Cost, Seen, ideas, indexed_stores, launches
from .form import KEY_AT, LINE, NO_COPIES, Bug, Course, Exercise, KernelCode, Track
from .scenes import Played, Sessions, Truth, first_wrong_keys, key_at, owner_of, start, start_lengths, steps

# -- the exercise -----------------------------------------------------------------------------------------------------

EXERCISE = Exercise(
    name="MyKVAppend",
    difficulty=3,
    minutes=60,
    text=(
        "The cell holds the part of lesson 060, the wrapper of the full-batch kernel, and a kernel with an empty "
        "body. As it stands, it runs and is right, because the class never calls the wrapper. First write the kernel "
        "(about 40 minutes): its arguments, its body, and its launch in the wrapper. Much of it stands in the generic "
        "kernel and in the formula above; your part is to say what the new kernel need not be told, and what takes its "
        'place. Decorate it with `@triton.jit(do_not_specialize=["pos"])`, so that one compiled kernel serves every '
        "position. Then write the gate (about 20 minutes): its conditions stand above, and the code is left to you. "
        "`check` sees your kernel only through the gate, so it says little before both are there."
    ),
    docstring=(
        "Put the new token's K and V into the cache.\n\n"
        "Goal: where Triton runs, a whole batch with a constant position is written by one launch of "
        "`kv_append_triton_full_batch`, and any other by one of `kv_append_triton`, each from its threshold in the "
        "configuration on. Below the thresholds it is written as now."
    ),
    goals={},
    look=(
        "In the generic kernel above, which lines use `batch_idx_ptr` and `pos_ptr`, and what takes their place if the "
        "batch is whole and the position constant? How far apart are two rows of K, if K is a view of a larger tensor? "
        "And which conditions must hold before each of the two kernels may run?"
    ),
    do=(
        "The kernel: one program for each session, so that the number of the program is both the row of K and V and "
        "the place in the list of blocks; the slot is the same for all. Cast the block to `tl.int64` before you "
        "multiply. A row of lanes covers all heads, `BLOCK_HD` is the next power of two, and what lies behind `H * D` "
        "is masked. The rows of K and of V each have their own distance, `stride(0)`.\n\nThe wrapper: the grid is "
        "`(len(block_idx),)`; the pointers, `pos` and the two strides go in order, the constants `H`, `D`, "
        "`BLOCK_SIZE` and `BLOCK_HD` by name.\n\nThe gate: ask once, when the part is built, whether Triton runs on "
        "`kv.device`, and from how many sessions on each kernel is to be used (`triton_kv_append_min_batch`, and "
        "`triton_kv_append_full_batch_min_batch`, where None stands for the former). In `write` the special kernel "
        "comes first, with all of its conditions; then the generic one, for which Triton and the number of sessions "
        "are enough and which is told rows, blocks and slots; then the indexed stores. Only one of the three writes."
    ),
    wanted=("kv_append_triton", "triton_runs_on", "tl"),
    kernel_code=KernelCode(
        module="kv_append",
        functions={
            "kv_append_triton_full_batch": """
                _kv_append_full_batch_kernel[(len(block_idx),)]()
                """,
        },
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
)


# -- the bug hunt -----------------------------------------------------------------------------------------------------


def scene(engine: InferenceEngine) -> Iterator[Sessions]:
    sessions = start_lengths(engine, dict.fromkeys("ABC", 4))
    yield sessions
    yield from steps(engine, sessions, 2)
    for name in "BAC":  # the order in which they are done
        engine.free(sessions[name])
    sessions = start(engine, {"D": [41] * 4, "E": [51] * 4, "F": [61] * 4})
    yield from steps(engine, sessions, 3)


def truth(hunt: Played, model: Model) -> Truth:
    right, ours, broken, wrong = first_wrong_keys(hunt, model)
    holders = {
        owner_of(key_at(broken.kv, session, position), right.kv, ours): name for name, session, position in wrong
    }
    return {"session": {holders["D"]}, "position": {str(wrong[0][2])}}


COLLEAGUES_FILE = '''\
from rosecourse.kernels import kv_append_triton, kv_append_triton_full_batch, triton_runs_on
from rosecourse.kv.buffers import index_tensor


class Appender:
    """Chooses for each layer how the batch is written:
    by one of two kernels, or by indexed stores."""

    def __init__(self, model, kv, config):
        self.kv = kv
        never = float("inf")
        self.kernel_from = (
            config.triton_kv_append_min_batch if triton_runs_on(kv.device) else never
        )
        self.whole_from = self.kernel_from
        if config.triton_kv_append_full_batch_min_batch and self.kernel_from != never:
            self.whole_from = config.triton_kv_append_full_batch_min_batch

    def __call__(self, sessions, keys, values):
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            rows, blocks, shared = [], [], []
            for row, session in enumerate(sessions):
                ids = session.block_ids_per_layer[layer]
                if not ids or self.kv.info(ids[-1]).length == self.kv.block_size:
                    ids.append(self.kv.allocate_block(layer, len(ids) * self.kv.block_size))
                block = self.kv.info(ids[-1])
                if block.owners > 1:
                    shared.append((row, ids))
                else:
                    rows.append(row)
                    blocks.append(block)
            if rows:
                self.write(layer, rows, blocks, k, v)
            for row, ids in shared:
                self.kv.append_token(layer, ids, k[row], v[row])

    def write(self, layer, rows, blocks, k, v):
        """These rows of K and V into the next slots of
        their blocks, in the way that suits them."""
        caches = self.kv.k_layers[layer], self.kv.v_layers[layer]
        order = sorted(range(len(rows)), key=lambda n: blocks[n].block_index)  # by address
        rows, blocks = [rows[n] for n in order], [blocks[n] for n in order]
        complete = len(rows) == len(k)
        slots = [block.length for block in blocks]
        level = len(set(slots)) == 1
        where = index_tensor([block.block_index for block in blocks], self.kv.device)
        if complete and level and len(rows) >= self.whole_from:
            kv_append_triton_full_batch(*caches, k, v, where, slots[0])
        elif len(rows) >= self.kernel_from:
            kv_append_triton(*caches, k, v, *self.pair(rows, where, slots))
        else:
            self.store(
                caches,
                rows,
                where,
                slots[0] if level else index_tensor(slots, self.kv.device),
                k,
                v,
            )
        for block in blocks:
            block.length += 1

    def pair(self, rows, where, slots):
        """What the general kernel is told: rows, blocks,
        slots; two of the lists are sent together."""
        rows_and_slots = index_tensor([rows, slots], self.kv.device)
        return rows_and_slots[0], where, rows_and_slots[1]

    def store(self, caches, rows, where, slots, k, v):
        if rows != list(range(len(k))):
            taken = index_tensor(rows, self.kv.device)
            k, v = k.index_select(0, taken), v.index_select(0, taken)
        for cache, new in zip(caches, (k, v), strict=True):
            cache[where, :, slots] = new
'''


BUG = Bug(
    minutes=15,
    symptom=(
        "Three requests of equal length are right to the end. They finish, and three others of the same length follow "
        "on the same engine. In their first decode step each of these gets the key of another. In a new engine they "
        "would be right. With a threshold above the size of the batch, or with "
        "requests of mixed lengths, nothing happens."
    ),
    tools=(
        KEY_AT,
        '`count_step(engine, list(sessions.values()), part="kv_append").launches`, from '
        "`rosecourse.measure.counters`, makes one decode step and counts the kernels that it launches.",
    ),
    questions={
        "session": "the name of the request that first gets the key of `D` in its own block",
        "position": "the position at which it gets that key, a number",
        "line": LINE,
    },
    hints={
        "session": (
            "After the first step of the second three, compare each request's newest key with those that the right "
            "engine has written: `bug.key_at(engine.kv, session, session.num_cached_tokens - 1)`."
        ),
        "position": "Compare all keys of that request at the first moment of the second three. One of them is wrong.",
        "line": (
            "Count the launches in that step: which kernel runs, and what does it take for granted of the rows? Then "
            "print the indices of the blocks of each request, in both halves of the scene."
        ),
    },
    source=COLLEAGUES_FILE,
    fault=(
        "        order = sorted(range(len(rows)), key=lambda n: blocks[n].block_index)  # by address\n"
        "        rows, blocks = [rows[n] for n in order], [blocks[n] for n in order]\n"
        "        complete = len(rows) == len(k)\n"
    ),
    mended="        complete = len(rows) == len(k)\n",
    config=EngineConfig(
        block_size=8, max_batch_size=8, max_seq_len=48, prefix_cache=False, triton_kv_append_min_batch=2
    ),
    scene=scene,
    truth=truth,
    explanation=(
        "The full-batch kernel takes row b of `k` for block b of its list, so a whole batch is not enough: its rows "
        "must stand in order. The colleague sorts them by where their blocks lie, and the gate compares numbers of "
        "rows only. In a new engine the blocks are taken in the order of the requests, and sorting changes nothing. "
        "Once requests have given their blocks back, the next ones get them in another order, and each block gets the "
        "row of another request. The generic kernel and the indexed stores are told the rows, so they are right in any "
        "order."
    ),
)


# -- what is counted --------------------------------------------------------------------------------------------------


def with_thresholds(
    name: str, batch: Callable[[Oracle, int], list[Tracked]], any_rows: int, whole_batches: int | None, *, n: int = 4
) -> Situation:
    """A situation with these thresholds, which its name tells too."""
    two = f"a threshold of {any_rows}, and of {whole_batches} for whole batches"
    told = f"{name}, with " + (f"both thresholds at {any_rows}" if whole_batches is None else two)
    return gated(told, batch, any_rows, whole_batches, n=n)


WHOLE = (
    with_thresholds("at the same slot", of(always(5)), 4, None),
    with_thresholds("at the same slot", of(always(5)), 5, 4),
    with_thresholds("at the same slot of first, second and third blocks", of(same_slot(5)), 2, 4, n=5),
    with_thresholds("whose last blocks are full", of(always(8)), 2, None, n=3),
    with_thresholds("inside its block", of(always(11)), 1, None, n=1),
)
NOT_WHOLE = (
    with_thresholds("at the same slot", of(always(5)), 4, 5),
    with_thresholds("at the same slot, one of them in a shared block", of(always(13), forks=1), 4, None, n=5),
)
MIXED = (
    with_thresholds("inside their blocks", of(any_blocks), 4, None),
    with_thresholds("of whose last blocks half are full", of(half_full), 2, None, n=3),
)
BELOW = (
    with_thresholds("at the same slot", of(always(5)), 5, None),
    with_thresholds("inside their blocks", of(any_blocks), 5, 4),
    with_thresholds("at the same slot, one of them in a shared block", of(always(5), 1), 5, None, n=5),
    with_thresholds("at the same slot, one of them in a shared block", of(always(5), 1), 6, 4, n=5),
)
LARGE = (*WHOLE, *NOT_WHOLE, *MIXED)


def writes_without_kernel(seen: Seen) -> int:
    return indexed_stores(seen) if launches(seen) else max(1, indexed_stores(seen))


BINARIES = Cost(
    "kernel(s) compiled for two steps",
    lambda seen: max(1, len(seen.binaries)),  # on a GPU the course's own is compiled before it is launched
    sentence="{found} kernel(s) (is/are) compiled for {situation} and for the next step; the course's part of lesson "
    "{lesson} needs {right}: is the position a constant of the kernel?",
)

COURSE = Course(
    number="061",
    world=KV_APPEND,
    exercise=EXERCISE,
    bug=BUG,
    ideas=(
        *ideas(LARGE, COPIES),
        *ideas(WHOLE[:1], BINARIES),
        *ideas(WHOLE, INDEX_TENSORS),  # how the generic kernel gets its lists is left open
        *ideas((*LARGE, *BELOW), LAUNCHES),
    ),
    track=Track(requests=(16, 128)),  # the gate asks for 128
    no_launch=Cost("write(s) of K and V without a Triton kernel", writes_without_kernel),
    unseen=f"reads behind a row, more binaries than one for `pos`, whether the gate asks if Triton runs, and "
    f"{NO_COPIES}",
)
