"""Parts of lesson 064, rows that stay: wrong ones, with what they are refused for."""

from dataclasses import replace

import torch

from rosecourse.decode import DecodeInputs
from rosecourse.decode.rows import FIELDS, KEY, POSITION, TEMPERATURE, TOKEN, TOP_K, TOP_P, UNKNOWN
from rosecourse.lessons.l064 import Rows


class TrustsTokens(Rows):
    """Whoever sits where they sat has the token that `take` has brought."""

    def plan(self, sessions):
        if self.holds(sessions):
            self.tokens = [session.token_ids[-1] for session in sessions]
        return super().plan(sessions)


class KeepsTheCallersList(Rows):
    def take(self, chosen, token_ids):
        super().take(chosen, token_ids)
        self.tokens = token_ids


class TakesOnTheHostAlone(Rows):
    def take(self, chosen, token_ids):
        self.tokens = list(token_ids)


class NeverAdvances(Rows):
    def advance(self):
        pass


class AdvancesTheFirst(Rows):
    def advance(self):
        self.positions[:1].add_(1)


class AdvancesTwice(Rows):
    def advance(self):
        self.positions.add_(2)


class KnowsSessions(Rows):
    """A session that was there is known, whatever has become of its table."""

    def forget(self):
        super().forget()
        self.sessions = []

    def plan(self, sessions):
        self.tables = [session.table for session in self.sessions]
        inputs = super().plan(sessions)
        self.sessions = list(sessions)
        return inputs


class KnowsLists(Rows):
    """A table is known by how its blocks begin."""

    def forget(self):
        super().forget()
        self.lists = []

    def plan(self, sessions):
        tables = [session.table for session in sessions]
        self.tables = [next((t for t in tables if t[: len(kept)] == kept), None) for kept in self.lists]
        inputs = super().plan(sessions)
        self.lists = [list(table) for table in tables]
        return inputs


class ComparesLengths(Rows):
    def _tell_blocks(self, tables, ends, changes):
        known = [end if n == len(t) else UNKNOWN for end, n, t in zip(ends, self.num_blocks, tables, strict=True)]
        self.ends = [end if n else UNKNOWN for end, n in zip(known, self.num_blocks, strict=True)]
        super()._tell_blocks(tables, ends, changes)


class ForgetsNewBlocks(Rows):
    def _tell_blocks(self, tables, ends, changes):
        self.ends = [end if n else UNKNOWN for end, n in zip(ends, self.num_blocks, strict=True)]
        super()._tell_blocks(tables, ends, changes)


class Moves(Rows):
    """The course's, with another way to move rows: `move(to, source)`, lists of them."""

    def _assign_rows(self, sessions, tables, changes):
        row_of = {id(table): row for row, table in enumerate(self.tables)}
        stay = [(row, row_of[id(table)]) for row, table in enumerate(tables) if id(table) in row_of]
        before = self.state.clone()
        super()._assign_rows(sessions, tables, changes)
        self.state.copy_(before)
        if any(row != source for row, source in stay):
            self.move(*map(list, zip(*stay, strict=True)))


class NeverMoves(Moves):
    def move(self, to, source):
        pass


class MovesTheOtherWay(Moves):
    def move(self, to, source):
        self.fields[:, source] = self.fields[:, to]
        self.block_tables[source] = self.block_tables[to]


class MovesFieldsAlone(Moves):
    def move(self, to, source):
        self.fields[:, to] = self.fields[:, source]


class MovesBlocksAlone(Moves):
    def move(self, to, source):
        self.block_tables[to] = self.block_tables[source]


class MovesOneByOne(Moves):
    def move(self, to, source):
        for row, other in zip(to, source, strict=True):
            self.fields[:, row] = self.fields[:, other]
            self.block_tables[row] = self.block_tables[other]


class MovesNoParameters(Moves):
    def move(self, to, source):
        for field in (TOKEN, POSITION):
            self.fields[field, to] = self.fields[field, source]
        self.block_tables[to] = self.block_tables[source]


class UploadsNoParameters(Rows):
    def _upload(self, changes):
        fields = (TEMPERATURE, TOP_K, TOP_P, KEY)
        super()._upload({at: x for at, x in changes.items() if at // self.max_rows not in fields})


class UploadsNoPositions(Rows):
    def _upload(self, changes):
        super()._upload({at: x for at, x in changes.items() if at // self.max_rows != POSITION})


class AsksOnce(Rows):
    """Whether anybody samples is found out in the first step."""

    def forget(self):
        super().forget()
        self.first = None

    def plan(self, sessions):
        inputs = super().plan(sessions)
        self.first = self.sampling if self.first is None else self.first
        self.sampling = self.first
        return inputs


class SamplesForEver(Rows):
    """Once somebody has sampled, the rows say for ever that somebody does."""

    def plan(self, sessions):
        sampled = self.sampling
        inputs = super().plan(sessions)
        self.sampling |= sampled
        return inputs


class AsksBeforeItAdvances(Rows):
    def asked(self):
        asked = super().asked()
        return asked and asked._replace(positions=asked.positions - 1)


class NeverForgets(Rows):
    def forget(self):
        if not hasattr(self, "tables"):
            super().forget()


class HoldsInAnyOrder(Rows):
    def holds(self, sessions):
        return {id(session.table) for session in sessions} == {id(table) for table in self.tables}


class HoldsEverybody(Rows):
    def holds(self, sessions):
        return True


class WholeBuffers(Rows):
    def plan(self, sessions):
        super().plan(sessions)
        tables = self.block_tables.expand(self.kv.num_layers, -1, -1)
        most = max(session.num_cached_tokens for session in sessions)
        return DecodeInputs(self.fields[TOKEN], self.fields[POSITION], most, tables, sessions)


class NumbersFarApart(Rows):
    """A view of a board whose columns are fields."""

    def plan(self, sessions):
        inputs = super().plan(sessions)
        lengths = torch.stack([inputs.context_lens] * 2, dim=1)[:, 0]
        return replace(inputs, context_lens=lengths)


class ReturnsNothing(Rows):
    def plan(self, sessions):
        super().plan(sessions)


class SortsTheSessions(Rows):
    def plan(self, sessions):
        sessions.sort(key=lambda session: session.num_cached_tokens)
        return super().plan(sessions)


class SwallowsInterrupts(Rows):
    def plan(self, sessions):
        try:
            return super().plan(sessions)
        except BaseException:
            self.forget()
            return None


class SharesItsBoard(Rows):
    """All engines write into one tensor."""

    boards: list = []  # noqa: RUF012

    def __init__(self, model, kv, config):
        super().__init__(model, kv, config)
        state = next((board for board in self.boards if len(board) == len(self.state)), self.state)
        self.boards.append(state)
        self.state = state
        end = FIELDS * self.max_rows
        self.fields = state[:end].view(FIELDS, self.max_rows)
        self.block_tables = state[end:].view(self.max_rows, self.max_blocks)
        self._look()


class WithoutTake:
    def __init__(self, model, kv, config):
        self.plan = self.advance = self.asked = self.holds = self.forget = lambda *sessions: None


class PlansWithoutSessions(Rows):
    def plan(self):
        pass


WRONG = (
    TrustsTokens,
    KeepsTheCallersList,
    TakesOnTheHostAlone,
    NeverAdvances,
    AdvancesTheFirst,
    AdvancesTwice,
    KnowsSessions,
    KnowsLists,
    ComparesLengths,
    ForgetsNewBlocks,
    NeverMoves,
    MovesTheOtherWay,
    MovesFieldsAlone,
    MovesBlocksAlone,
    MovesOneByOne,
    MovesNoParameters,
    UploadsNoParameters,
    UploadsNoPositions,
    AsksOnce,
    SamplesForEver,
    AsksBeforeItAdvances,
    NeverForgets,
    HoldsInAnyOrder,
    HoldsEverybody,
    WholeBuffers,
    NumbersFarApart,
    ReturnsNothing,
    SortsTheSessions,
    SwallowsInterrupts,
    SharesItsBoard,
    WithoutTake,
    PlansWithoutSessions,
)
