"""A tiny model with grouped heads and random weights, and its greedy decoding without engine, cache or blocks."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from rosecourse.models.shape import Attend


@dataclass(frozen=True)
class GroupedShape:
    """Sizes that are independent of each other: no head size follows from the width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int = 5
    num_layers: int = 2
    width: int = 24
    context: int = 96
    vocab_size: int = 101

    def parameters(self) -> dict[str, tuple[int, ...]]:
        C, D = self.width, self.head_dim
        sizes = {"wte.weight": (self.vocab_size, C), "wpe.weight": (self.context, C)}
        for i in range(self.num_layers):
            sizes[f"h.{i}.q"] = (C, self.num_heads * D)
            sizes[f"h.{i}.kv"] = (C, 2 * self.num_kv_heads * D)
            sizes[f"h.{i}.out"] = (self.num_heads * D, C)
            sizes[f"h.{i}.up"] = (C, 2 * C)
            sizes[f"h.{i}.down"] = (2 * C, C)
        return sizes


class GroupedModel:
    """A `Model` much like GPT-2, with separate projections for q and for K and V."""

    def __init__(self, shape: GroupedShape, tokenizer, device: str | torch.device = "cpu", seed: int = 0) -> None:
        self.shape, self.tokenizer, self.name = shape, tokenizer, "grouped"
        self.dtype, self.device = torch.float32, torch.device(device)
        generator = torch.Generator().manual_seed(seed)
        sizes = shape.parameters().items()
        self.weights = {n: (torch.randn(size, generator=generator) * 0.5).to(self.device) for n, size in sizes}

    def hidden(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        w, shape = self.weights, self.shape
        x = w["wte.weight"][token_ids] + w["wpe.weight"][positions]
        for i in range(shape.num_layers):
            h = F.layer_norm(x, (shape.width,))
            q = (h @ w[f"h.{i}.q"]).view(-1, shape.num_heads, shape.head_dim)
            k, v = (h @ w[f"h.{i}.kv"]).view(-1, 2, shape.num_kv_heads, shape.head_dim).unbind(1)
            x = x + attend(i, q, k, v).reshape(len(x), -1) @ w[f"h.{i}.out"]
            x = x + F.gelu(F.layer_norm(x, (shape.width,)) @ w[f"h.{i}.up"]) @ w[f"h.{i}.down"]
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(hidden, (self.shape.width,)) @ self.weights["wte.weight"].T


def full_logits(model: GroupedModel, token_ids: list[int]) -> torch.Tensor:
    """Logits [vocab_size] after `token_ids`: the whole sequence at once, attention head by head in float64."""
    group = model.shape.num_heads // model.shape.num_kv_heads

    def causal(_: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = []
        for h in range(q.shape[1]):
            scores = q[:, h].double() @ k[:, h // group].double().T / q.shape[2] ** 0.5
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            heads.append(scores.masked_fill(future, float("-inf")).softmax(-1) @ v[:, h // group].double())
        return torch.stack(heads, dim=1).float()

    ids = torch.tensor(token_ids, device=model.device)
    with torch.inference_mode():
        return model.logits(model.hidden(ids, torch.arange(len(ids), device=model.device), causal))[-1]


def full_greedy(model: GroupedModel, prompt: list[int], max_new_tokens: int) -> list[int]:
    """The greedy completion of a prompt."""
    token_ids = list(prompt)
    for _ in range(max_new_tokens):
        token_ids.append(int(full_logits(model, token_ids).argmax()))
    return token_ids[len(prompt) :]
