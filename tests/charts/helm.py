"""Helm as a person calls it, and what it renders as objects. Imported by the tests of the charts."""

from pathlib import Path
from typing import Any

import yaml
from tests.cluster.commands import attempt, run
from tests.cluster.programs import programs

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
JOBS = sorted((ROOT / "examples" / "kubernetes").glob("*.yaml"))
SWEEP = ROOT / "examples" / "helm" / "sweep.yaml"
PLATFORM = ROOT / "examples" / "helm" / "platform.yaml"
ARGOCD = ROOT / "examples" / "argocd" / "application.yaml"
TEAMS = ROOT / "examples" / "helm" / "teams.yaml"

Object = dict[str, Any]


class Helm:
    """The pinned Helm, in the eyes of one user of one cluster."""

    def __init__(self, kubeconfig: Path | None = None) -> None:
        """Compile it if it is not there yet; without a kubeconfig it can only render."""
        self._program = programs() / "helm"
        self._cluster = ("--kubeconfig", kubeconfig) if kubeconfig else ()
        self._rendered: dict[tuple[str | Path, ...], str] = {}  # a rendering takes a second

    def __call__(self, *words: str | Path) -> str:
        """Run it and return what it printed.

        Raises:
            ClusterError: it failed; the text has what it printed.
        """
        return run(self._program, *words, *self._cluster)

    def refused(self, *words: str | Path) -> str:
        """Run a command that must fail and return what it said."""
        code, printed = attempt(self._program, *words, *self._cluster)
        assert code, f"this should have been refused: helm {' '.join(map(str, words))}\n{printed}"
        return printed

    def render(self, chart: str, *options: str | Path) -> list[Object]:
        """The objects that `helm template` makes of a chart, as release `shardwise` in `shardwise-system`."""
        if (chart, *options) not in self._rendered:
            words = ("template", "shardwise", CHARTS / chart, "--namespace", "shardwise-system")
            self._rendered[chart, *options] = self(*words, *options)
        return [document for document in yaml.safe_load_all(self._rendered[chart, *options]) if document]


def of_teams(helm: Helm) -> list[Object]:
    """The objects of the example of two teams."""
    return helm.render("training-teams", "--values", TEAMS)


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one object of this kind and name."""
    found = [item for item in objects if (item["kind"], item["metadata"]["name"]) == (kind, name)]
    assert len(found) == 1, [(item["kind"], item["metadata"]["name"]) for item in objects]
    return found[0]


def operator_of(objects: list[Object]) -> dict[str, Any]:
    """The pod spec of the operator."""
    spec: dict[str, Any] = named(objects, "Deployment", "shardwise")["spec"]["template"]["spec"]
    return spec
