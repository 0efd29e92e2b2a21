"""The real kind for tests: one control plane and two workers, each a container.

The user's Docker runs it where one answers. Else, as root on Debian, one of our own does, with a node image made here
from Debian packages and Go modules, and goes away with the cluster:

    python -m tests.cluster.kind up
    eval "$(python -m tests.cluster.kind env)"        # KUBECONFIG
    python -m tests.cluster.kind load localhost/shardwise-trainer:dev
    python -m tests.cluster.kind down
"""

import os
import sys
from typing import Annotated

import typer
from tests.cluster.commands import ClusterError, say
from tests.cluster.kind import engine, lifecycle
from tests.cluster.kind.places import CACHE, CONTROL_PLANE, KUBECONFIG

# The mark keeps click from filling the lines of the example as if they were prose.
_HELP = (__doc__ or "").replace("\n\n    ", "\n\n\b\n    ")
app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
Node = Annotated[str, typer.Argument(metavar="NODE", help="its name; the control plane's by default")]


@app.command()
def build() -> None:
    """Make what is not made yet: kind, and a node image where no registry is in reach. Minutes the first time."""
    was_up = engine.answers()
    lifecycle.prepare()
    if not was_up:
        engine.remove()


@app.command()
def up() -> None:
    """Create the cluster and wait until it is ready."""
    lifecycle.up()
    say("ready. Point kubectl and helm at it:")
    env()


@app.command()
def down() -> None:
    """Delete the cluster; leave nothing behind but the cache of programs and images."""
    lifecycle.down()
    say("down")


@app.command()
def env() -> None:
    """Print the lines for a shell: KUBECONFIG, and DOCKER_HOST where Docker is one of our own."""
    for name, value in {"KUBECONFIG": str(KUBECONFIG), **engine.environment()}.items():
        typer.echo(f"export {name}={value}")


@app.command()
def status() -> None:
    """Show the nodes and how much memory they take."""
    typer.echo(lifecycle.describe())


@app.command()
def load(images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="of docker, podman or buildah")]) -> None:
    """Give images to the workers; there is no registry. Without a cluster, does nothing."""
    if not lifecycle.is_up():
        say("no cluster is up, so the images are loaded into none")
        return
    for image in images:
        lifecycle.load(image)


@app.command()
def kill_node(node: Node = CONTROL_PLANE) -> None:
    """End a node at once, with all that runs in it."""
    lifecycle.kill_node(node)


@app.command()
def start_node(node: Node = CONTROL_PLANE) -> None:
    """Boot a node that was killed."""
    lifecycle.start_node(node)


def main() -> None:
    """Run the command line; a failure is a sentence and exit code 1."""
    # Programs that only root has on its path are asked for, found and run here.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    try:
        app()
    except ClusterError as failure:
        sys.exit(f"kind: {failure}\n(the cache is {CACHE})")


if __name__ == "__main__":
    main()
