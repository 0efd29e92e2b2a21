"""Each claim of the tour of moving data fails when its idea is taken out."""

import pytest
from tests.tour.breaking import Broken, Outcomes

BROKEN = [
    Broken(
        idea="the largest instead of the sum",
        old='lambda x: lax.psum(x, "i"), P(), 2',
        new='lambda x: lax.pmax(x, "i"), P(), 2',
        claim="psum is what NumPy makes of it",
    ),
    Broken(
        idea="the sum instead of the mean",
        old='lambda x: lax.pmean(x, "i")',
        new='lambda x: lax.psum(x, "i")',
        claim="pmean is what NumPy makes of it",
    ),
    Broken(
        idea="one block four times",
        old='lambda x: lax.all_gather(x, "i", tiled=True, to="invarying"), P(), (n - 1)',
        new='lambda x: jnp.tile(lax.pmax(x, "i"), (n, 1)), P(), (n - 1)',
        claim="all_gather is what NumPy makes of it",
    ),
    Broken(
        idea="a column of the device's own block instead of the sum's",
        old='lambda x: lax.psum_scatter(x, "i", scatter_dimension=1, tiled=True), columns',
        new="lambda x: x[:, :1], columns",
        claim="psum_scatter is what NumPy makes of it",
    ),
    Broken(
        idea="a permute to the wrong neighbour",
        old="[(d, (d + 1) % n) for d in range(n)]",
        new="[(d, (d - 1) % n) for d in range(n)]",
        claim="ppermute is what NumPy makes of it",
    ),
    Broken(
        idea="all gathered to be summed",
        old='lambda x: lax.psum(x, "i"), P(), 2',
        new='lambda x: lax.all_gather(x, "i", tiled=True, to="invarying").sum(0, keepdims=True), P(), 2',
        claim="psum sends what the formula of a ring says",
    ),
    Broken(
        idea="the untiled scatter is tiled",
        old="tiled=tiled)",
        new="tiled=True)",
        claim="an untiled scatter drops a dimension",
    ),
    Broken(
        idea="the tiled scatter is not",
        old="tiled=tiled)",
        new="tiled=False)",
        claim="a tiled one keeps it",
    ),
    Broken(
        idea="what is gathered was not summed",
        old='lax.all_gather(scattered(x), "i"',
        new='lax.all_gather(x[:, :512], "i"',
        claim="psum is psum_scatter and all_gather, to the bit",
    ),
    Broken(
        idea="the second half left out",
        old='"then gather": (in_halves, P())',
        new='"then gather": (scattered, columns)',
        claim="and as many bytes, half of them in each half",
    ),
    Broken(
        idea="the copied version with the mean of the mended one",
        old='mean = lax.pmean(x, "hidden")\n',
        new='mean = lax.pmean(x.mean(axis=1, keepdims=True), "hidden")\n',
        claim="the copied version turns every number into +1 or -1",
    ),
    Broken(
        idea="the normalisation without the local mean",
        old='lax.pmean(x.mean(axis=1, keepdims=True), "hidden")',
        new='lax.pmean(x, "hidden")',
        claim="the mended one is the plain normalisation",
    ),
    Broken(
        idea="the normalisation without the sum over devices",
        old='lax.pmean(x.mean(axis=1, keepdims=True), "hidden")',
        new="x.mean(axis=1, keepdims=True)",
        claim="the mended one is the plain normalisation",
    ),
    Broken(
        idea="the numbers are exchanged, and their mean is taken after",
        old='lax.pmean(x.mean(axis=1, keepdims=True), "hidden")',
        new='lax.pmean(x, "hidden").mean(axis=1, keepdims=True)',
        claim="and sends one number a row instead of 32",
    ),
    Broken(
        idea="K without the sum over devices",
        old='lax.psum(x @ w, "i"), columns, rows, P()',
        new='lax.pmax(x @ w, "i"), columns, rows, P()',
        claim="split by K, summed, it is the same matmul",
    ),
    Broken(
        idea="the gather of w skipped",
        old='x @ lax.all_gather(w, "i", tiled=True)',
        new="x @ jnp.tile(w, (8, 1))",
        claim="split by rows, w gathered, it is the same matmul",
    ),
    Broken(
        idea="all of K's parts gathered to be summed",
        old='lax.psum(x @ w, "i"), columns, rows, P()',
        new='lax.all_gather(x @ w, "i", to="invarying").sum(0), columns, rows, P()',
        claim="split by K, summed, it sends what the formula says",
    ),
    Broken(
        idea="split by rows and by columns instead of by K",
        old="for a, spec in ((left, columns), (right, rows)))",
        new="for a, spec in ((left, rows), (right, columns)))",
        claim="jit sums over K by itself",
    ),
    Broken(
        idea="blocks by K where they should be of rows",
        old="[block @ v for block in np.split(M, 4, axis=0)]",
        new="[M[:, i::4] @ v[i::4] for i in range(4)]",
        claim="products of row blocks, added up, are a vector of the wrong length",
    ),
    Broken(
        idea="every fourth row is a block",
        old="[block @ v for block in np.split(M, 4, axis=0)]",
        new="[M[i::4] @ v for i in range(4)]",
        claim="products of row blocks are laid end to end",
    ),
    Broken(
        idea="each block meets another's part of the vector",
        old="np.split(v, 4)",
        new="np.split(v, 4)[::-1]",
        claim="products of K blocks are summed",
    ),
    Broken(
        idea="the mean over the batch without the sum over devices",
        old='lax.psum(jnp.sum(x @ w, axis=0), "batch") / 1024',
        new='lax.pmean(jnp.sum(x @ w, axis=0), "batch") / 1024',
        claim="the sum over the named axis is the mean over the batch",
    ),
    Broken(
        idea="divided by half the batch",
        old='lax.psum(row @ w, "batch") / 1024',
        new='lax.psum(row @ w, "batch") / 512',
        claim="a name that is no axis of the mesh gives the same",
    ),
    Broken(
        idea="summed over devices before it is summed on each",
        old='lax.psum(jnp.sum(x @ w, axis=0), "batch") / 1024',
        new='jnp.sum(lax.psum(x @ w, "batch"), axis=0) / 1024',
        claim="it sends 64 numbers a device",
    ),
    Broken(
        idea="rows that were not summed",
        old='jax.vmap(row_mean, in_axes=(0, None), axis_name="batch")(x, w)',
        new="jax.vmap(jnp.matmul, in_axes=(0, None))(x, w)",
        claim="kept with the batch axis, the mean is one row, again and again",
    ),
]


def test_it_holds(outcomes: Outcomes) -> None:
    """The tour runs through, so that none of its claims fails, and saves a picture."""
    outcomes.assert_it_holds()


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.idea)
def test_a_claim_falls_with_its_idea(outcomes: Outcomes, broken: Broken) -> None:
    """With one idea taken out, the tour ends at the claim that rests on it."""
    outcomes.assert_claim_fails(broken)
