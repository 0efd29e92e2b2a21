"""docs/own-programs.md names what there is: the functions, what a program is told, and the examples."""

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import shardwise
from shardwise.protocol import program

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "own-programs.md").read_text(encoding="utf-8")


def test_functions_are_described() -> None:
    """Each name that `shardwise` offers is in the table of calls, and is there."""
    called = set(re.findall(r"^\| `(\w+)", TEXT, re.MULTILINE))
    offered = set(shardwise.__all__) - {"Run"}

    assert offered <= called
    assert all(hasattr(shardwise, name) for name in shardwise.__all__)


def test_variables_are_described() -> None:
    """Each variable that a program is told its place by is named, but for the files of the library."""
    of_library = (program.PROGRESS, program.STACKS)
    ours = {value for name, value in vars(program).items() if name.isupper() and str(value).startswith("SHARDWISE_")}

    assert ours - set(of_library) <= set(re.findall(r"`(SHARDWISE_\w+)`", TEXT))
    assert set(program.OWN_VARIABLES) <= set(re.findall(r"`(\w+)`", TEXT))


def test_the_job_is_the_file() -> None:
    """The job that is shown for a cluster is the example, without the words at its head."""
    written = (ROOT / "examples" / "kubernetes" / "own-program.yaml").read_text(encoding="utf-8")

    assert re.findall(r"```yaml\n(apiVersion: shardwise.*?)```", TEXT, re.DOTALL) == [
        re.sub(r"(?m)^#.*\n", "", written)
    ]


def test_examples_are_listed() -> None:
    """Each script of examples/programs has a line."""
    scripts = {path.name for path in (ROOT / "examples" / "programs").glob("*.py")}

    assert scripts == set(re.findall(r"^\| \[(\w+\.py)\]", TEXT, re.MULTILINE))


def test_the_version_of_jax_is_the_locked_one() -> None:
    """The page names the JAX of the trainer's image, and no other."""
    named = set(re.findall(r"JAX (\d+\.\d+\.\d+)", TEXT.partition("### Examples")[0]))

    assert named == {version("jax")}


SCRIPTS = {
    "arrays": """
state = {"weights": jnp.zeros(4)}


@jax.jit
def train(state, batch):
    loss, gradients = jax.value_and_grad(lambda state: ((batch @ state["weights"] - 1) ** 2).mean())(state)
    return jax.tree.map(lambda weight, gradient: weight - 0.1 * gradient, state, gradients), loss
""",
    "equinox": """
import equinox as eqx

layers = [eqx.nn.Linear(4, 8, key=jax.random.key(0)), eqx.nn.Lambda(jax.nn.relu), eqx.nn.Dropout(inference=True)]
state = eqx.nn.Sequential([*layers, eqx.nn.Linear(8, 1, key=jax.random.key(1))])


@eqx.filter_jit
def train(state, batch):
    loss, gradients = eqx.filter_value_and_grad(lambda state: ((jax.vmap(state)(batch) - 1) ** 2).mean())(state)
    return eqx.apply_updates(state, jax.tree.map(lambda gradient: -0.1 * gradient, gradients)), loss
""",
}
ENDS = "print(first, step, float(loss) < 1)\n"


@pytest.mark.parametrize("kind", SCRIPTS)
def test_the_lines_are_enough(tmp_path: Path, kind: str) -> None:
    """The lines of the page, around a script for one device, train it; of equinox with what their comment says."""
    (lines,) = re.findall(r"```python\n(import shardwise\n.*?)```", TEXT, re.DOTALL)
    if kind == "equinox":
        lines = re.sub(r"jax\.device_put\(state, whole\)  # .*: (eqx\..*)", r"\1", lines)
        assert "eqx.filter_shard(state, whole)\n" in lines
    lines = lines.replace("1000", "20").replace("1001", "21")
    lines = lines.replace("...\n", "data = np.ones((256, 4), np.float32)\n" + SCRIPTS[kind])
    head = "import jax\nimport jax.numpy as jnp\nimport numpy as np\n"
    (tmp_path / "script.py").write_text(head + lines + ENDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SHARDWISE_")}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "0 20 True\n"), done.stderr
    assert list(tmp_path.glob("runs/script/checkpoints/step-00000020/COMMITTED"))
