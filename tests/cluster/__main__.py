"""A real Kubernetes for tests, on this machine and nothing else: no Docker, no registry, nothing left behind.

Three nodes that run containers need root, best on Debian; an API server alone needs neither:

    python -m tests.cluster up --nodes 3
    eval "$(python -m tests.cluster env)"     # KUBECONFIG, kubectl and helm
    python -m tests.cluster load localhost/shardwise-trainer:0.1.0-cpu
    python -m tests.cluster down

    python -m tests.cluster api-server        # until Ctrl-C
"""

import os
import signal
import sys
from typing import Annotated

import typer
from images.build import ARCHITECTURES
from images.build import build as build_image
from tests.cluster import kueue, lifecycle, loading, nodes
from tests.cluster import kwok as kwok_nodes
from tests.cluster.api_server import ApiServer
from tests.cluster.commands import ClusterError, say
from tests.cluster.places import BUILDAH_ENVIRONMENT, CACHE, KUBECONFIG
from tests.cluster.programs import locked, programs

# The mark keeps click from filling the lines of the example as if they were prose.
_HELP = (__doc__ or "").replace("\n\n    ", "\n\n\b\n    ")
app = typer.Typer(help=_HELP, no_args_is_help=True, add_completion=False, rich_markup_mode=None)
Node = Annotated[int, typer.Argument(metavar="N", help="the number of the node: 2 is node2")]


@app.command()
def build() -> None:
    """Compile what is not compiled yet and print the folder: six minutes the first time, nothing after that."""
    typer.echo(programs())


@app.command()
def prepare() -> None:
    """Build all that the tests need before they begin, so that none of them waits: programs, and images for nodes."""
    programs()
    kueue.prepare()
    if reason := lifecycle.impossible():
        say(f"no images: {reason}")
        return
    lifecycle.require_all()
    with locked("image-builds"):
        for target in ("operator", "cpu"):
            build_image(target)
        # `make publish` is tried with an image for another architecture too.
        for architecture in ARCHITECTURES:
            build_image("operator", architecture=architecture)


@app.command()
def api_server() -> None:
    """Run an API server on a free port of this machine until Ctrl-C; print the line that points kubectl at it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ApiServer() as server:
            say("ready; Ctrl-C ends it")
            typer.echo(f"export KUBECONFIG={server.kubeconfig} PATH={programs()}:$PATH")
            sys.stdout.flush()
            signal.pause()
    except KeyboardInterrupt:
        say("ended")


@app.command()
def up(
    number: Annotated[int, typer.Option("--nodes", help="how many, 1 to 9")] = 3,
    grace_seconds: Annotated[
        int, typer.Option("--node-grace", help="silence in seconds after which a node counts as dead")
    ] = 50,
) -> None:
    """Start the control plane and the nodes, and wait until they are ready."""
    lifecycle.up(number, grace_seconds)
    say("ready. Point kubectl and helm at it:")
    env()


@app.command()
def down() -> None:
    """End everything and leave nothing behind but the cache of programs."""
    lifecycle.down()
    say("down")


@app.command()
def env() -> None:
    """Print the lines for a shell: KUBECONFIG, PATH and buildah's settings."""
    variables = {"KUBECONFIG": str(KUBECONFIG), **BUILDAH_ENVIRONMENT}
    for name, value in variables.items():
        typer.echo(f"export {name}={value}")
    typer.echo(f"export PATH={programs()}:$PATH")


@app.command()
def status() -> None:
    """Show what runs and how much memory it takes."""
    typer.echo(lifecycle.describe())


@app.command()
def load(images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="as in `buildah images`")]) -> None:
    """Give images of buildah's store to every node that runs; there is no registry. Without a cluster, does nothing."""
    if not lifecycle.is_up():
        say("no cluster is up, so the images are loaded into none")
        return
    for image in images:
        loading.load(image, nodes.running_nodes())


@app.command()
def kill_node(number: Node) -> None:
    """Node N loses power: all its processes end, and its peers see silence."""
    nodes.kill(nodes.named(number))


@app.command()
def start_node(number: Node) -> None:
    """Node N boots again."""
    nodes.boot_again(nodes.named(number))


@app.command()
def kwok(number: Annotated[int, typer.Option("--nodes", help="how many; 0 starts KWOK alone")] = 100) -> None:
    """Add nodes that exist only in the API server: their pods become Running, and run nothing."""
    kwok_nodes.add(number)


def main() -> None:
    """Run the command line; a failure is a sentence and exit code 1."""
    # Programs that only root has on its path are asked for, found and run here.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
    try:
        app()
    except ClusterError as failure:
        sys.exit(f"cluster: {failure}\n(the cache is {CACHE})")


if __name__ == "__main__":
    main()
