"""Text to tokens: `shardwise tokenize` against the `tokenizers` library alone, on one core and on two.

Called by `benchmarks.main`. The text is this repository's, file by file, again and again in another order; the
tokenizer is a byte-level BPE that is trained on it. Digests of memory, in one thread and in two, show what the
machine has left for a second one meanwhile.
"""

import json
import random
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.turns import ROOT, Spread, Worker, ratios, take_turns
from tokenizers import ByteLevelBPETokenizer

PLAIN, PLAIN_TWO, ONE, TWO = "tokenizers, 1 thread", "tokenizers, 2 threads", "Shardwise, 1 process", "Shardwise, 2"
LOOP, LOOP_TWO = "arithmetic, 1 thread", "arithmetic, 2 threads"
LOOPS = {LOOP: ("arithmetic", "1"), LOOP_TWO: ("arithmetic", "2")}
"""What the machine has left for a second process: nothing is read, locked or shared."""
PEERS = {PLAIN: ("plain", "1"), PLAIN_TWO: ("plain", "2"), ONE: ("shardwise", "1"), TWO: ("shardwise", "2")}
TEXT_BYTES = 16_000_000
VOCABULARY = 8192
_PATTERNS = ("docs/*.md", "trainer/**/*.py", "operator/**/*.py", "tests/**/*.py")
Report = Callable[[str], None]


def measure(
    pythons: Pythons, *, rounds: int, deadline: float, report: Report, text_bytes: int = TEXT_BYTES
) -> dict[str, Any]:
    """{"rounds", "text_bytes", "peers": {peer: {"rate": bytes a second, "ratio": to PLAIN}}, "scaling": TWO to ONE}."""
    report("tokenising")
    with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder, ExitStack() as stack:
        write_text(Path(folder), text_bytes)
        workers = {
            name: stack.enter_context(Worker(pythons.own, "tokenise", folder, *arguments))
            for name, arguments in {**PEERS, **LOOPS}.items()
        }
        results = take_turns(workers, rounds=rounds, deadline=deadline)
    to_plain = ratios(results, PLAIN)
    peers = {
        name: {"rate": asdict(Spread.of([rates[name] for rates in results])), "ratio": asdict(to_plain[name])}
        for name in PEERS
    }
    pairs = {"Shardwise": (ONE, TWO), "tokenizers": (PLAIN, PLAIN_TWO), "digests of memory": (LOOP, LOOP_TWO)}
    scaling = {name: asdict(ratios(results, one)[two]) for name, (one, two) in pairs.items()}
    return {"rounds": len(results), "text_bytes": text_bytes, "peers": peers, "scaling": scaling}


def write_text(folder: Path, text_bytes: int) -> None:
    """Write text.jsonl of about so many bytes, and tokenizer.json."""
    files = sorted(path for pattern in _PATTERNS for path in ROOT.glob(pattern))
    texts = [text for path in files if (text := path.read_text(encoding="utf-8"))]
    shuffled = random.Random(0)  # noqa: S311  repeatable, not secret
    with (folder / "text.jsonl").open("w", encoding="utf-8") as handle:
        while handle.tell() < text_bytes:
            handle.write(json.dumps({"text": shuffled.choice(texts)}) + "\n")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(texts, vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], show_progress=False)
    trained.save(str(folder / "tokenizer.json"))
