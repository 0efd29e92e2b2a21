"""What people see of the API: `kubectl explain`, short names, columns."""

from tests.cluster.client import Client

from shardwise.job.explain import rows


def test_explain_says_what_check_explain_says(shardwise_api: Client) -> None:
    """Every leaf of the spec is there with its description, and numbers with their unit and default."""
    printed = " ".join(shardwise_api.kubectl("explain", "tj.spec", "--recursive").split())
    for row in rows():
        if row.path.startswith("spec."):
            assert row.path.split(".")[-1] in printed
    mesh = " ".join(shardwise_api.kubectl("explain", "tj.spec.training.mesh").split())

    assert "Ways that heads, mlp and vocabulary are split. Unit: devices. Default: 1." in mesh
    assert "Splits weights and optimizer state over the data axis, and over context. Default: true." in mesh


def test_lists_have_columns(shardwise_api: Client) -> None:
    """`kubectl get tj` and `accel` answer by short name, and all kinds by category."""
    heads = "NAME PLATFORM DESCRIPTION AGE"

    assert shardwise_api.kubectl("get", "accel").split("\n")[0].split() == heads.split()
    assert "acceleratorclass.shardwise.dev/tpu-v5p" in shardwise_api.kubectl("get", "shardwise", "--output", "name")
