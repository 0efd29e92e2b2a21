"""Write a task of lm-evaluation-harness as a file of questions, for `questions: true` of an evaluation set.

    python questions_of_harness.py TASK EXAMPLES FILE [FOLDER]      such as: arc_easy 0 arc-easy.jsonl

It runs where lm_eval is installed, and writes what the harness would ask a model: EXAMPLES are how many questions with
answers stand before each one, FOLDER has descriptions of further tasks. Data are fetched as the harness fetches them.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

SEED = 1234  # the harness's own, for which examples stand before a question


def main() -> None:
    """Write the file."""
    if len(sys.argv) not in (4, 5):
        sys.exit(f"expected TASK EXAMPLES FILE [FOLDER], given {len(sys.argv) - 1} words\n\n{__doc__}")
    name, examples, file, *folders = sys.argv[1:]
    if not examples.isdecimal():
        sys.exit(f"EXAMPLES: given {examples}, expected a number of questions with answers, such as 0")
    tasks = TaskManager(include_path=folders or None)
    if name not in tasks.all_tasks:
        sys.exit(f"TASK: given {name}, which the harness does not know; `lm_eval ls tasks` lists those that it does")
    task: Any = tasks.load(name)["tasks"].get(name)
    if task is None or getattr(task, "OUTPUT_TYPE", None) != "multiple_choice":
        sys.exit(f"{name} is no single task with choices; expected one such as arc_easy or hellaswag")
    task.set_config(key="num_fewshot", value=int(examples))
    task.set_fewshot_seed(seed=SEED)
    task.build_all_requests()
    questions: dict[int, dict[str, Any]] = {}
    for request in task.instances:
        prompt, choice = request.arguments[:2]
        question = questions.setdefault(
            request.doc_id, {"prompt": prompt, "choices": [], "answer": _answer(task, request)}
        )
        if question["prompt"] != prompt:
            sys.exit(f"{name} asks for the same words after several beginnings, or for choices without a question")
        question["choices"].append(choice)
    with Path(file).open("w", encoding="utf-8") as target:
        target.writelines(json.dumps(question, ensure_ascii=False) + "\n" for question in questions.values())
    print(f"{file}: {len(questions):,} questions of {name}")


def _answer(task: Any, request: Any) -> int:
    """Return the place of the right choice, which a task names by its place or its words."""
    answer = task.doc_to_target(request.doc)
    return int(answer) if not isinstance(answer, str) else task.doc_to_choice(request.doc).index(answer)


if __name__ == "__main__":
    main()
