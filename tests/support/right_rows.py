"""Parts of lesson 064, rows that stay, which are right and written in other styles."""

from types import SimpleNamespace

import torch
from torch import float64

from rosecourse.decode import DecodeInputs
from rosecourse.decode.rows import sampling_fields
from rosecourse.kv.buffers import index_tensor
from tests.support.cells import exercise_of

UploadsEverything = exercise_of("064")


class FixedSeats:
    """A session keeps its seat as long as it has the same table; a step gathers the rows of its seats."""

    def __init__(self, model, kv, config):
        self.kv, self.most = kv, config.max_batch_size
        self.board = torch.zeros(self.most, 6 + config.max_blocks, dtype=torch.int64, device=kv.device)
        self.forget()

    def forget(self):
        self.seats, self.said = [], {}  # (table, seat) of the last step; seat -> what the board says

    def plan(self, sessions):
        before = {id(table): seat for table, seat in self.seats}
        taken = {before[id(s.table)] for s in sessions if id(s.table) in before}
        free = [seat for seat in range(self.most) if seat not in taken]
        seats = [before[id(s.table)] if id(s.table) in before else free.pop() for s in sessions]
        news = []
        for seat, s in zip(seats, sessions, strict=True):
            line = [s.token_ids[-1], s.num_cached_tokens, *sampling_fields(s.params), *s.table]
            old = self.said.get(seat, []) if id(s.table) in before else []
            news += [(seat, n, x) for n, x in enumerate(line) if n >= len(old) or old[n] != x]
            self.said[seat] = line
        if news:
            where, column, numbers = index_tensor([list(x) for x in zip(*news, strict=True)], self.kv.device)
            self.board.index_put_((where, column), numbers)
        if seats != [seat for _, seat in self.seats]:
            self.index = index_tensor(seats, self.kv.device)
        self.seats = [(s.table, seat) for s, seat in zip(sessions, seats, strict=True)]
        rows = self.board.index_select(0, self.index)
        tables = rows[:, 6:].to(torch.int32).unsqueeze(0).expand(self.kv.num_layers, -1, -1)
        return DecodeInputs(
            rows[:, 0].contiguous(),
            rows[:, 1].contiguous(),
            max(s.num_cached_tokens for s in sessions),
            tables,
            sessions,
        )

    def advance(self):
        self.board[:, 1] += 1
        for line in self.said.values():
            line[1] += 1

    def asked(self):
        if not any(self.said[seat][2] for _, seat in self.seats):  # no temperature: all are greedy
            return None
        rows = self.board[self.index]
        floats = rows.view(float64)
        return SimpleNamespace(
            positions=rows[:, 1], temperature=floats[:, 2], top_k=rows[:, 3], top_p=floats[:, 4], keys=rows[:, 5]
        )

    def holds(self, sessions):
        kept = [table for table, _ in self.seats]
        return len(kept) == len(sessions) and all(a is s.table for a, s in zip(kept, sessions, strict=True))

    def take(self, chosen, token_ids):
        self.board[self.index, 0] = chosen
        for (_, seat), token_id in zip(self.seats, token_ids, strict=True):
            self.said[seat][0] = token_id


RIGHT = (FixedSeats, UploadsEverything)
