"""Train the models that ship in data/, and write them in Hugging Face format.

    python training/train.py austen.txt data/tiny-gpt2
    python training/train.py austen.txt data/tiny-llama --family llama

`austen.txt` comes from training/corpus.py. The defaults are those of the shipped models: minutes on a GPU, hours on a
laptop; `--steps 20` shows on any machine that everything works.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

END_OF_TEXT = "<|endoftext|>"
HELD_OUT_EVERY = 40  # one chapter in so many is kept for validation


def train_tokenizer(texts: list[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer, as GPT-2's, with one special token (id 0) that ends a chapter."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode(tokenizer: Tokenizer, chapters: list[str]) -> torch.Tensor:
    """All chapters in one row of ids, int64 [tokens]; each begins and ends with the end-of-text token."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = [end]
    for chapter in chapters:
        ids += [*tokenizer.encode(chapter).ids, end]
    return torch.tensor(ids)


def random_windows(ids: torch.Tensor, batch: int, length: int) -> torch.Tensor:
    starts = torch.randint(0, len(ids) - length, (batch, 1), device=ids.device)
    return ids[starts + torch.arange(length, device=ids.device)]


@torch.no_grad()
def mean_loss(model: PreTrainedModel, ids: torch.Tensor, length: int) -> float:
    """Mean cross-entropy (nats a token) over `ids`, cut into windows of `length`."""
    model.eval()
    windows = ids[: len(ids) // length * length].view(-1, length)
    total = sum(model(input_ids=w, labels=w).loss.item() * len(w) for w in windows.split(32))
    model.train()
    return total / len(windows)


def learning_rate(step: int, steps: int, peak: float, warmup: int = 200) -> float:
    """A linear warm-up, then half a cosine down to a twentieth of the peak."""
    if step < warmup:
        return peak * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * done)))


def train(model: PreTrainedModel, ids: torch.Tensor, args: argparse.Namespace) -> None:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    model.train()
    bar = tqdm(range(args.steps), mininterval=10)
    for step in bar:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        windows = random_windows(ids, args.batch, args.context)
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=ids.device.type == "cuda"):
            loss = model(input_ids=windows, labels=windows).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            bar.set_postfix(loss=f"{loss.item():.3f}")


def untrained(args: argparse.Namespace, tokenizer: Tokenizer) -> PreTrainedModel:
    """A model of the family and the sizes in `args`. A Llama has half as many KV heads as query heads."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    ids = {"vocab_size": tokenizer.get_vocab_size(), "bos_token_id": end, "eos_token_id": end}
    if args.family == "llama":
        config = LlamaConfig(
            **ids,
            max_position_embeddings=args.context,
            hidden_size=args.width,
            intermediate_size=3 * args.width,
            num_hidden_layers=args.layers,
            num_attention_heads=args.heads,
            num_key_value_heads=args.heads // 2,
            attention_dropout=args.dropout,
            tie_word_embeddings=True,
        )
        return LlamaForCausalLM(config)
    return GPT2LMHeadModel(
        GPT2Config(
            **ids,
            n_positions=args.context,
            n_embd=args.width,
            n_layer=args.layers,
            n_head=args.heads,
            resid_pdrop=args.dropout,
            embd_pdrop=args.dropout,
            attn_pdrop=args.dropout,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, help="paragraphs a line, an empty line between chapters")
    parser.add_argument("out", type=Path, help="the folder to write")
    parser.add_argument("--family", choices=["gpt2", "llama"], default="gpt2")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weight-decay", type=float, default=0.05)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    chapters = args.text.read_text(encoding="utf-8").split("\n\n")
    held_out = chapters[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY]
    kept = [c for i, c in enumerate(chapters) if i % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]
    tokenizer = train_tokenizer(kept, args.vocab_size)
    train_ids = encode(tokenizer, kept).to(args.device)
    model = untrained(args, tokenizer).to(args.device)
    print(f"{model.num_parameters():,} parameters, {len(train_ids):,} training tokens")
    train(model, train_ids, args)
    print(f"final loss: training {mean_loss(model, train_ids, args.context):.3f} nats a token", end="")
    if held_out:
        held_ids = encode(tokenizer, held_out).to(args.device)
        print(f", held-out chapters {mean_loss(model, held_ids, args.context):.3f}", end="")
    print()
    model.to("cpu").save_pretrained(args.out)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        unk_token=END_OF_TEXT,
        model_max_length=args.context,
    ).save_pretrained(args.out)


if __name__ == "__main__":
    main()
