"""A task of lm-evaluation-harness on a small model, for tests/cli/harness_program.py: in .venv-hf.

    python -m tests.train.weights.hf.harness_there FOLDER [ADDRESS MODEL]

It makes FOLDER/model, as it is published, with its tokenizer, FOLDER/task with the task `fruits`, and
FOLDER/found.json: what the harness finds of it by the model. With the address of a server's completions, whose token
is in OPENAI_API_KEY, and its model's name, it makes FOLDER/found.json anew, of what the harness finds by that.
"""

import json
import sys
from pathlib import Path
from random import Random

import torch
from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

EXAMPLES, POSITIONS = 2, 128
FRUITS = ("apples", "ripe plums", "pears", "dried figs", "limes", "dates", "a melon", "green grapes", "Äpfel")
NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eve")
_TASK = """
task: fruits
dataset_path: json
dataset_kwargs: {data_files: {train: %(folder)s/train.jsonl, test: %(folder)s/test.jsonl}}
output_type: multiple_choice
test_split: test
fewshot_split: train
doc_to_text: "{{who}} likes"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
  - {metric: acc_norm, aggregation: mean, higher_is_better: true}
"""


def main() -> None:
    """Make them, and ask."""
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    if len(sys.argv) > 2:
        asked = {"base_url": sys.argv[2], "model": sys.argv[3], "tokenizer": str(folder / "model")}
        _ask(folder, "local-completions", asked | {"max_length": POSITIONS + 1})
        return
    _write_task(folder / "task")
    _write_model(folder / "model")
    _ask(folder, "hf", {"pretrained": str(folder / "model"), "dtype": "float32", "device": "cpu"})


def _ask(folder: Path, model: str, arguments: dict[str, str | int]) -> None:
    """Write what the harness finds of the task by a model."""
    found = simple_evaluate(
        model=model,
        model_args=arguments,
        tasks=["fruits"],
        task_manager=TaskManager(include_path=str(folder / "task")),
        num_fewshot=EXAMPLES,
        batch_size=8,
        bootstrap_iters=0,
    )
    results = {name.partition(",")[0]: value for name, value in found["results"]["fruits"].items()}
    (folder / "found.json").write_text(json.dumps({name: results[name] for name in ("acc", "acc_norm")}))


def _write_task(folder: Path) -> None:
    folder.mkdir()
    draw = Random(0)
    for split, count in (("train", 20), ("test", 300)):
        with (folder / f"{split}.jsonl").open("w", encoding="utf-8") as file:
            for _ in range(count):
                choices = draw.sample(FRUITS, draw.randint(2, 5))
                asked = {"who": draw.choice(NAMES), "choices": choices, "answer": draw.randrange(len(choices))}
                file.write(json.dumps(asked) + "\n")
    (folder / "fruits.yaml").write_text(_TASK % {"folder": folder})


def _write_model(folder: Path) -> None:
    """Write a model of random weights, large enough that choices differ by far more than rounding."""
    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    end = "</s>"
    text = [f"{name} likes {fruit}\n\n" for name in NAMES for fruit in FRUITS]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=POSITIONS,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end).save_pretrained(folder)


if __name__ == "__main__":
    main()
