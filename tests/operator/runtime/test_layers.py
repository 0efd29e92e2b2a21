"""The runtime stands by itself."""

import ast
from pathlib import Path

RUNTIME = Path(__file__).parents[3] / "operator" / "shardwise_operator" / "runtime"


def imported(path: Path) -> set[str]:
    """The modules that a file imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def test_the_runtime_imports_nothing_of_the_rest() -> None:
    """Neither the job's language nor another part of the operator: it could run any controller."""
    ours = {name for path in RUNTIME.glob("*.py") for name in imported(path) if name.startswith("shardwise")}

    assert [name for name in sorted(ours) if not name.startswith("shardwise_operator.runtime.")] == []
