"""The learner's operations as a model calls them in the lab: each call is logged, and looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, equal

from ...models.ops import Linear, Norm
from .causes import Cause
from .fault import Fault, PartIsWrong
from .ops_guard import GuardedOps
from .ops_judges import Asked, Judge
from .ops_log import OpsLog
from .ops_streams import Stream, Variant, product_of, rows_of

NOT_YOURS = "it belongs to others, who read it again: write into memory of your own"
HELD = "whoever called the operation may still read it: let each call return memory of its own"
STEPS = ("this step", "the step before")


class JudgedOps:
    """Operations on streams that know what is right. names: of the sessions in the rows of the step."""

    def __init__(self, guard: GuardedOps, log: OpsLog, judge: Judge) -> None:
        self.guard, self.log, self.judge = guard, log, judge
        self.names: Sequence[str] = ()
        self._returned: list[list[tuple[str, Tensor, Tensor]]] = []  # of the last steps: what, as it is, as it was

    def begin(self, names: Sequence[str]) -> None:
        """A step of these sessions begins."""
        self.names = names
        self._returned = [*self._returned[-1:], []]

    # -- the operations -----------------------------------------------------------------------------------------------

    def embed(self, token_ids: Tensor, positions: Tensor, wte: Tensor, wpe: Tensor) -> Stream:
        given = {"token_ids": token_ids, "positions": positions}
        mine = self._call("embed", given, lambda: self.guard.embed(token_ids, positions, wte, wpe))
        weights = self.judge.weights
        token = rows_of("the token's row of wte", weights.wte, token_ids)
        position = rows_of("the position's row of wpe", weights.wpe, positions)
        return Stream(mine, (token, position)).left_by("`embed`")

    def norm_linear(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        return self._product("norm_linear", x, norm, linear)

    def norm_linear_gelu(self, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        return self._product("norm_linear_gelu", x, norm, linear)

    def linear_add(self, h: Tensor, linear: Linear, x: Stream) -> Stream:
        mine = self._call("linear_add", {"h": h}, lambda: self.guard.linear_add(h, linear, x.mine))
        named = self.judge.weights.linears[id(linear)]
        term = product_of(h.double(), named, self.judge.weights)
        return x.then(mine, term).left_by(f"`linear_add` of {named}")

    def logits(self, x: Stream, norm: Norm, wte: Tensor) -> Tensor:
        made = self._call("logits", {}, lambda: self.guard.logits(x.mine, norm, wte))
        return self._looked_at(Asked("logits", x, self.judge.weights.norms[id(norm)], None), made)

    def _product(self, method: str, x: Stream, norm: Norm, linear: Linear) -> Tensor:
        made = self._call(method, {}, lambda: getattr(self.guard, method)(x.mine, norm, linear))
        weights = self.judge.weights
        gelu = method == "norm_linear_gelu"
        return self._looked_at(Asked(method, x, weights.norms[id(norm)], weights.linears[id(linear)], gelu), made)

    def _looked_at(self, asked: Asked, made: Tensor) -> Tensor:
        self.judge.look(asked, made, self.names)
        asked.stream.normed.append((len(asked.stream.terms), self.judge.norm(asked.stream.total, asked.norm)))
        self._returned[-1].append((str(asked), made, made.clone()))
        return made

    def _call(self, method: str, given: dict[str, Tensor], call: Callable[[], Any]) -> Any:
        """Let the part run; what it was given is what it was. Raises `PartIsWrong` if it is not."""
        before = {name: tensor.clone() for name, tensor in given.items()}
        with self.log.calling(method):
            made = call()
        changed = [name for name, tensor in given.items() if not equal(tensor, before[name])]
        name = f"`{changed[0]}`" if changed else self.judge.weights.changed()
        if name:
            raise PartIsWrong(Fault(f"`{method}` changes {name}", reason=NOT_YOURS, cause=Cause.INPUTS_CHANGED))
        return made

    # -- after a step -------------------------------------------------------------------------------------------------

    def look_at_returned(self) -> None:
        """What this step and the one before it have returned is still what it was. Raises `PartIsWrong` if not."""
        for ago, returned in enumerate(reversed(self._returned)):
            for what, tensor, then in returned:
                if not equal(tensor, then):
                    told = f"what {what} returned in {STEPS[ago]} has been overwritten since"
                    raise PartIsWrong(Fault(told, reason=HELD, cause=Cause.BUFFER_REUSED))

    def strange_of(self, stream: Stream, whose: str) -> list[Variant]:
        """The additions to a stream, and their sum, as what must not get into another one."""
        kept = Cause.STATE_KEPT
        terms = [Variant(kept, f"{term.name} of {whose} is in it", term.right) for term in stream.terms]
        return [*terms, Variant(kept, f"it is {whose}, which has nothing to do with this one", stream.total)]
