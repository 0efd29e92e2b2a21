"""charts/training-job: a job file is its values; a sweep varies it."""

from pathlib import Path

import pytest
import yaml
from tests.charts.helm import CHARTS, JOBS, SWEEP, Helm, named

from shardwise.job.load import load

CHART = CHARTS / "training-job"
BASE = JOBS[0].parent / "cpu-two-hosts.yaml"


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_a_job_file_is_a_file_of_values(helm: Helm, job: Path, tmp_path: Path) -> None:
    """Each example becomes one job with the same spec, named after the release."""
    rendered = helm.render("training-job", "-f", job)
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(rendered[0]), encoding="utf-8")

    assert [item["metadata"]["name"] for item in rendered] == ["shardwise"]
    assert load(file).spec == load(job).spec


def test_sweep(helm: Helm) -> None:
    """Each entry is a job that differs in what it names, in a folder of its own."""
    jobs = helm.render("training-job", "-f", BASE, "-f", SWEEP)
    base = yaml.safe_load(BASE.read_text(encoding="utf-8"))["spec"]
    high = named(jobs, "TrainingJob", "shardwise-high")["spec"]

    assert [job["metadata"]["name"] for job in jobs] == [
        f"shardwise-{n}" for n in ("low", "middle", "high", "tensor-4")
    ]
    assert [job["spec"]["training"]["optimizer"]["learningRate"] for job in jobs] == [1e-4, 3e-4, 1e-3, 3e-4]
    assert high["training"]["optimizer"]["name"] == base["training"]["optimizer"]["name"]
    assert high["training"]["data"] == base["training"]["data"]
    assert len({job["spec"]["pod"]["directory"] for job in jobs}) == 4
    assert high["pod"] == base["pod"] | {"directory": f"{base['pod']['directory']}/high"}


def test_sweep_keeps_checkpoints_apart(helm: Helm, tmp_path: Path) -> None:
    """A checkpoint path gets the entry's name too, unless the entry has a path of its own."""
    sweep = [{"name": "a"}, {"name": "b", "spec": {"training": {"checkpoint": {"path": "gs://x/mine"}}}}]
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"sweep": sweep}), encoding="utf-8")

    jobs = helm.render("training-job", "-f", JOBS[0].parent / "tpu-v5e-single-host.yaml", "-f", values)

    paths = [job["spec"]["training"]["checkpoint"]["path"] for job in jobs]
    assert paths == ["gs://YOUR-BUCKET/runs/tpu-v5e-single-host/a", "gs://x/mine"]


@pytest.mark.parametrize("release", ["20261127", "1e5", "on"])
def test_a_release_may_have_a_name_that_is_a_number_in_yaml(helm: Helm, release: str) -> None:
    """As one that is named after a day: names and labels stay text."""
    (job,) = yaml.safe_load_all(helm("template", release, CHART, "--namespace", "2024", "-f", BASE))

    assert (job["metadata"]["name"], job["metadata"]["namespace"]) == (release, "2024")
    assert job["metadata"]["labels"]["app.kubernetes.io/instance"] == release


def test_a_job_file_may_name_its_namespace(helm: Helm) -> None:
    """That of the release; a job is not put elsewhere without a word, as it would be, whichever of both counted."""
    job = helm.render("training-job", "-f", BASE, "--set", "metadata.namespace=shardwise-system")[0]
    other = helm.refused("template", "x", CHART, "-n", "vision", "-f", BASE, "--set", "metadata.namespace=research")

    assert job["metadata"]["namespace"] == "shardwise-system"
    assert "metadata.namespace is research and the release's namespace is vision: give helm `-n research`" in other


def test_labels_and_annotations(helm: Helm) -> None:
    """The job has its own labels and annotations beside the release's."""
    options = ("--set", "metadata.labels.team=text", "--set", "metadata.annotations.why=try")

    job = helm.render("training-job", "-f", BASE, *options)[0]

    assert job["metadata"]["labels"].items() >= {"team": "text", "app.kubernetes.io/instance": "shardwise"}.items()
    assert job["metadata"]["annotations"] == {"why": "try"}


def test_a_label_of_the_job_goes_over_the_charts(helm: Helm, tmp_path: Path) -> None:
    """But for those by which the release is found again."""
    theirs = {
        "helm.sh/chart": "mine",
        **{f"app.kubernetes.io/{key}": "x" for key in ("name", "instance", "managed-by")},
    }
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"metadata": {"labels": theirs}}), encoding="utf-8")

    job = helm.render("training-job", "-f", BASE, "-f", values)[0]

    assert job["metadata"]["labels"] == {
        "helm.sh/chart": "mine",
        "app.kubernetes.io/name": "training-job",
        "app.kubernetes.io/instance": "shardwise",
        "app.kubernetes.io/managed-by": "Helm",
    }


def test_an_empty_label_of_the_job_goes_over_the_charts(helm: Helm) -> None:
    """A label without a value is a value: it is not taken for one that was not given."""
    (job,) = helm.render("training-job", "-f", BASE, "--set", r"metadata.labels.helm\.sh/chart=")

    assert job["metadata"]["labels"]["helm.sh/chart"] == ""


@pytest.mark.parametrize(
    ("release", "options", "words"),
    [
        ("x", (), "spec is empty: give a job file"),
        ("x" * 41, ("-f", str(BASE)), "has 41 characters; a job's name has at most 40"),
        ("x", ("-f", str(BASE), "--set", "kind=Job"), "at '/kind': value must be 'TrainingJob'"),
        ("x", ("-f", str(BASE), "--set", "sweep[0].spec.a=1"), "missing property 'name'"),
        (
            "x",
            ("-f", str(BASE), "--set", "sweep[0].name=a,sweep[1].name=b,sweep[2].name=a"),
            "two entries are called a;",
        ),
        ("x", ("-f", str(BASE), "--set", "specs.a=1"), "additional properties 'specs' not allowed"),
    ],
)
def test_refused(helm: Helm, release: str, options: tuple[str, ...], words: str) -> None:
    """What can make no job is refused before the cluster sees it, with what to do."""
    printed = helm.refused("template", release, CHART, *options)

    assert words in printed
