"""Each central claim of the tour of the vocabulary fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="every device with the same window",
        old='return tokens - lax.axis_index("tensor") * size',
        new="return tokens - 0 * size",
        claim="each way finds the rows of one device, bit for bit",
    ),
    Broken(
        idea="rows that are not at home left in the sum",
        old="jnp.where(here[:, None], table[row.clip(0, len(table) - 1)], 0)",
        new="table[row.clip(0, len(table) - 1)]",
        claim="each way finds the rows of one device, bit for bit",
    ),
    Broken(
        idea="one-hot vectors by index too",
        old='ROWS), "by columns": (by_columns, COLUMNS), "by index": (by_index, ROWS)}',
        new='ROWS), "by columns": (by_columns, COLUMNS), "by index": (by_vocabulary, ROWS)}',
        claim="by index there are none",
    ),
    Broken(
        idea="no sum of the exponentials",
        old='jnp.log(lax.psum(jnp.exp(logits).sum(-1), "tensor"))',
        new='jnp.log(lax.pmean(jnp.exp(logits).sum(-1), "tensor"))',
        claim="cross entropy and log Z are those of one device",
    ),
    Broken(
        idea="logits gathered for the loss",
        old='jnp.log(lax.psum(jnp.exp(logits).sum(-1), "tensor"))',
        new="jnp.log(jnp.exp(gather(logits)).sum(-1))",
        claim="three numbers a token instead of every logit",
    ),
    Broken(
        idea="the largest logit left out of log Z",
        old="log_sum + top, log_sum, target == 0",
        new="log_sum, log_sum, target == 0",
        claim="cross entropy and log Z are those of one device",
    ),
    Broken(
        idea="a z-loss that looks away from the largest logit",
        old='for log in ("log_z", "log_sum"))',
        new='for log in ("log_sum", "log_sum"))',
        claim="the true z-loss has the slope 2 log Z, and turns where log Z is 0",
    ),
    Broken(
        idea="the loss without its z-loss",
        old="""    terms = split_terms(by_index(w["table"], tokens) + positions(w["position"]), w["head"], targets)
    return (terms.entropy + 1e-4 * jnp.square(terms.log_z)).mean()""",
        new="""    terms = split_terms(by_index(w["table"], tokens) + positions(w["position"]), w["head"], targets)
    return terms.entropy.mean()""",
        claim="the loss over devices is the loss of one device",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through: none of its claims fails."""
    assert outcomes.as_it_stands == ""


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
