"""shardwise.job.quantity: durations and quantities as Kubernetes writes them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.job.quantity import Duration, Quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("7d", 604800),
        ("1.5h", 5400),
        ("90s", 90),
        ("300ms", 0.3),
        ("1d12h", 129600),
        ("250us", 0.00025),
        ("10m0s", 600),
    ],
)
def test_duration_has_its_seconds(text: str, seconds: float) -> None:
    """A duration is the sum of its parts, and keeps its text."""
    assert Duration(text).seconds == seconds
    assert str(Duration(text)) == text


@pytest.mark.parametrize(
    "text", ["", "10", "m", "0s", "0h0m", "-5m", "10 m", "10M", "1h-5m", "3651d", "1e3s", ".5h", "10m\n"]
)
def test_wrong_duration_is_refused(text: str) -> None:
    """What is not a positive length of time of at most ten years is refused, and quoted."""
    with pytest.raises(ValueError, match="is not a duration"):
        Duration(text)


@given(hours=st.integers(0, 9999), minutes=st.integers(0, 9999), milliseconds=st.integers(1, 10**6))
def test_parts_of_a_duration_add_up(hours: int, minutes: int, milliseconds: int) -> None:
    """Any mix of units is the exact sum, whatever the size of each part."""
    text = f"{hours}h{minutes}m{milliseconds}ms"
    assert Duration(text).seconds == float(Decimal(hours * 3600 + minutes * 60) + Decimal(milliseconds) / 1000)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"),
        ("4", "4"),
        ("500m", "0.5"),
        ("1.5", "1.5"),
        ("2Gi", "2147483648"),
        ("2G", "2000000000"),
        ("1Ki", "1024"),
        ("1k", "1000"),
        ("1e3", "1000"),
        ("2E", "2e18"),
        ("1Ei", "1152921504606846976"),
        ("12E2", "1200"),
        ("3u", "0.000003"),
        ("5n", "5e-9"),
    ],
)
def test_quantity_has_its_value(text: str, value: str) -> None:
    """Decimal, binary and exponent suffixes mean what Kubernetes says."""
    assert Quantity(text).value == Decimal(value)


@pytest.mark.parametrize("text", ["", "Gi", "1K", "1gi", "-1", "1 Gi", "1GiB", "1ki", "0x10"])
def test_wrong_quantity_is_refused(text: str) -> None:
    """Suffixes that Kubernetes does not know are refused."""
    with pytest.raises(ValueError, match="is not a quantity"):
        Quantity(text)


@given(number=st.integers(0, 10**9), suffix=st.sampled_from(["", "k", "M", "Ki", "Mi", "m"]))
def test_quantity_scales_with_its_number(number: int, suffix: str) -> None:
    """A quantity is its number times the suffix, exactly."""
    assert Quantity(f"{number}{suffix}").value == number * Quantity(f"1{suffix}").value
