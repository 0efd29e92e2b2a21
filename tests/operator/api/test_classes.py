"""A platform team's own class at apply: right ones are taken, and most mistakes are refused where they are written."""

from pathlib import Path

import pytest
from tests.cluster.client import Client

DOCUMENTED = Path(__file__).parents[3] / "docs" / "accelerators.md"
OWN = """
apiVersion: shardwise.dev/v1alpha1
kind: AcceleratorClass
metadata: {name: own}
spec:
  platform: tpu
  description: chips of our own
  kernels: [plain]
  machines: [{name: m2, chips: 2, topologies: [2x1, 2x2]}, {name: m8, chips: 8, topologies: [2x4, "8"]}]
  nodeSelector: {grid: "g-{topology}", type: "{machine}"}
"""
FLAGS = "  compiler: {target: v5p, flags: "
OVERLAP = "--xla_tpu_overlap_compute_collective_tc"
FUSION = "--xla_tpu_enable_async_collective_fusion_fuse_all_gather"
APPLY = ("apply", "--dry-run=server", "--filename", "-")


def test_a_class_of_ones_own_is_taken(shardwise_api: Client) -> None:
    """A class needs no more than its machines."""
    shardwise_api.kubectl(*APPLY, stdin=OWN)


def test_the_class_of_the_documentation_is_taken(shardwise_api: Client) -> None:
    """What a platform team copies, with its figures and its options, is right."""
    shardwise_api.kubectl(*APPLY, stdin=DOCUMENTED.read_text().partition("```yaml\n")[2].partition("```")[0])


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("topologies: [2x4,", "topologies: [2x3,", "expected grids of whole machines"),
        ("topologies: [2x4,", "topologies: [axb,", "should match"),
        ("{machine}", "{rack}", "expected no placeholder but {topology} and {machine}"),
        ("  nodeSelector:", "  hosts: {max: 2, maxDevices: 2}\n  nodeSelector:", "expected machines with their grids"),
        (
            "  nodeSelector:",
            "  hostPaths: [{name: a, path: /a, mountPath: /a}]\n  nodeSelector:",
            "expected privileged",
        ),
        (
            "  nodeSelector:",
            "  sidecars: [{name: a, image: a}]\n  nodeSelector:",
            "expected privileged, which hostPaths and sidecars need",
        ),
        (
            "  nodeSelector:",
            "  podSecurity: privileged\n  sidecars: [{name: agent, image: a}]\n  nodeSelector:",
            "expected a name apart from agent",
        ),
        (
            "  nodeSelector:",
            "  podSecurity: privileged\n  sidecars: [{name: a, image: a}, {name: a, image: b}]\n  nodeSelector:",
            "Duplicate value",
        ),
        (
            "  nodeSelector:",
            f"{FLAGS}[{{flag: --xla_tpu_spmd_rng_bit_generator_unsafe=true, reason: a}}]}}\n  nodeSelector:",
            "expected options without --xla_tpu_spmd_rng_bit_generator_unsafe",
        ),
        (
            "  nodeSelector:",
            f"{FLAGS}[{{flag: --xla_dump_to=/a, reason: a}}, {{flag: --xla_dump_to, reason: b}}]}}\n  nodeSelector:",
            "expected each option once",
        ),
        (
            "  nodeSelector:",
            f"{FLAGS}[{{flag: {OVERLAP}=True, reason: a}}, {{flag: {FUSION}, reason: b}}]}}\n  nodeSelector:",
            "expected options without --xla_tpu_overlap_compute_collective_tc, which together with another",
        ),
        ("  nodeSelector:", "  deviceMemory: 0\n  nodeSelector:", "spec.deviceMemory: Invalid value"),
        (
            "  nodeSelector:",
            "  peakFlops: {bfloat16: 0.0T, float32: 1T}\n  nodeSelector:",
            "spec.peakFlops.bfloat16: Invalid value",
        ),
        ("chips: 8,", "chips: 8, networkBandwidth: 0e3,", "expected a quantity above 0"),
        ("kernels: [plain]", "kernels: [fast]", "supported values"),
        ("  platform: tpu", "  platform: tpu\n  colour: red", "unknown field"),
    ],
)
def test_a_wrong_class_is_refused(shardwise_api: Client, old: str, new: str, said: str) -> None:
    """The refusal says what is expected."""
    assert old in OWN

    assert said in shardwise_api.refused(*APPLY, stdin=OWN.replace(old, new))
