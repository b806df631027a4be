"""Spaced KD of a language model with TRL's own GKDTrainer: a teacher learns by SFT, and the student sees it as it was.

Two tiny models learn to end the sentences of Python's own documentation; the student also learns from what it writes
itself, which the teacher of that step judges. Run it with: python examples/snapshots_trl.py FOLDER
"""

import re
import sys
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from spacedkd import Spacing

# isort: split
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast  # after spacedkd
from trl import SFTConfig, SFTTrainer
from trl.experimental.gkd import GKDConfig, GKDTrainer

LENGTH, STEPS, EVERY = 12, 60, 15
texts = [re.findall("[a-z]+", topics[name]) for name in ("compound", "debugger", "string-methods", "formatstrings")]
pieces = [words[at : at + LENGTH] for words in texts for at in range(0, len(words) - LENGTH, LENGTH)]
names = ["[pad]", "[end]", "[user]", "[assistant]", *dict.fromkeys(word for words in pieces for word in words)]
words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="[pad]"))
words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[pad]", eos_token="[end]")
tokenizer.chat_template = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def talk(words: list[str]) -> list[dict[str, str]]:
    """The user begins, the assistant ends."""
    begin, end = words[: LENGTH // 2], [*words[LENGTH // 2 :], "[end]"]
    return [{"role": "user", "content": " ".join(begin)}, {"role": "assistant", "content": " ".join(end)}]


train = Dataset.from_list([{"messages": talk(words)} for place, words in enumerate(pieces) if place % 8])
test = torch.tensor([tokenizer(" ".join(words))["input_ids"] for words in pieces[::8]])
common: dict[str, Any] = {
    "max_steps": STEPS,
    "per_device_train_batch_size": 16,
    "learning_rate": 5e-3,
    "max_length": 32,
    "save_strategy": "no",
    "report_to": "none",
    "bf16": False,
    "dataloader_pin_memory": torch.cuda.is_available(),
}


def network() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    tokens = {"vocab_size": len(names), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    return LlamaForCausalLM(LlamaConfig(max_position_embeddings=64, **sizes, **tokens))


def surprise(model: LlamaForCausalLM) -> float:
    """The cross-entropy of each next word, in nats; log(number of words) for one who guesses."""
    with torch.no_grad():
        return float(model.eval().cpu()(input_ids=test, labels=test).loss)


def main(folder: Path, *more: Any) -> dict[str, float]:
    spacing = Spacing(folder / "snapshots", every=EVERY)
    args, callbacks = SFTConfig(str(folder / "teacher"), **common), [spacing.transformers.teacher(), *more]
    teacher = SFTTrainer(network(), args, train_dataset=train, processing_class=tokenizer, callbacks=callbacks)
    teacher.train()
    student = GKDTrainer(
        network(),
        teacher_model=spacing.teacher(network),
        args=GKDConfig(str(folder / "student"), lmbda=0.2, beta=0.0, max_new_tokens=8, **common),
        train_dataset=train,
        processing_class=tokenizer,
        callbacks=[spacing.transformers.student(), *more],
    )
    student.train()
    return {"teacher": surprise(teacher.model), "student": surprise(student.model)}


if __name__ == "__main__":
    for role, nats in main(Path(sys.argv[1])).items():
        print(f"{role}: {nats:.2f} nats for the next of {len(names)} words, last step, one seed")
