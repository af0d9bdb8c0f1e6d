"""Independent ways to say what is right, and inputs to try them on; they share no code with the engine."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def hf_greedy(hf, prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]:
    """The greedy completions of prompts by `transformers` generate, with no token that ends them early."""
    hf.generation_config.eos_token_id = None
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])  # padded on the left
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    out = hf.generate(ids, attention_mask=mask, max_new_tokens=max_new_tokens, do_sample=False, pad_token_id=0)
    return out[:, longest:].tolist()


def hf_next_logits(hf, token_ids: list[int]) -> torch.Tensor:
    """Logits [vocab_size] after `token_ids`, computed at once without a cache."""
    with torch.inference_mode():
        return hf(torch.tensor([token_ids]), use_cache=False).logits[0, -1]


def attention(q, k, v):
    """q [H, D] over k, v [T, H_kv, D], in float64: returns [H, D]. Query head h reads K and V head h // (H / H_kv)."""
    group = len(q) // k.shape[1]
    k, v = (torch.stack([x[:, h // group] for h in range(len(q))], dim=1).double() for x in (k, v))  # [T, H, D]
    scores = torch.einsum("hd,thd->ht", q.double(), k) / q.shape[-1] ** 0.5
    return torch.einsum("ht,thd->hd", scores.softmax(-1), v)


def prompts_of(lengths: list[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Random prompts of given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocab_size, (n,), generator=generator).tolist() for n in lengths]


def hf_random_gpt2(
    num_heads: int = 2, head_dim: int = 8, seed: int = 0, context: int = 96, num_layers: int = 3
) -> GPT2LMHeadModel:
    """A small GPT-2 of `transformers` with random weights, large enough for tokens to depend on the whole context."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=211,
        n_positions=context,
        n_embd=num_heads * head_dim,
        n_layer=num_layers,
        n_head=num_heads,
        initializer_range=0.3,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).eval()
