"""One host's part of an epoch of Ray: a raylet, and below it the worker that the actor lives in.

Called by every agent, host 0's too; the head is the leader's (`epoch.py`). It does not import Ray. It starts Ray's own
program with what `ray start` would give it, for three reasons: `ray start` listens on every interface (it replaces
127.0.0.1 by the machine's address), it takes several seconds of Python, and it starts five more programs for each
host (dashboard, its agent, log monitor, reaper, set-up of environments), none of which is used here.
"""

import asyncio
import contextlib
import importlib.util
import ipaddress
import re
import secrets
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from shardwise.launcher import processes

SESSION = "s"  # what Ray calls a session has one name here: an epoch has folders of its own
RAY_VARIABLE = "SHARDWISE_RAY"  # which part of which epoch a process of Ray is
SOCKET_VARIABLE = "SHARDWISE_AGENT_SOCKET"

_STORE_BYTES = 80 << 20  # Ray's minimum is 75 MiB; the file is sparse, and nothing is ever stored
_WORDS = 300  # characters of Ray's logs in an error of ours
_ERROR = re.compile(r"\[[^]]* [EC] [^]]*\] (\(\w+\) )?")
_UNUSED_PORT = 1  # for agents that are not there: 0 would let the raylet wait for them
_UNUSED_AGENT = 'sh -c "read line"'  # the raylet insists on two agents and ends with them; these end with it


@dataclass(frozen=True, kw_only=True)
class RayAddress:
    """Where an epoch's head is, and the number it has given the cluster; `host:port/cluster` as text."""

    gcs: str
    cluster: str

    @classmethod
    def parse(cls, text: str) -> "RayAddress":
        """The inverse of `str`."""
        gcs, cluster = text.rsplit("/", 1)
        return cls(gcs=gcs, cluster=cluster)

    def __str__(self) -> str:
        return f"{self.gcs}/{self.cluster}"


@dataclass(frozen=True, kw_only=True)
class RayPlace:
    """What a part of Ray needs to know of the run: whose mark it carries, where it may listen, where it may write.

    `address` is the ip to listen on: 127.0.0.1 keeps Ray off every other interface; with any other one Ray listens on
    all of them, and the token alone keeps strangers out. `scratch` is on the host's own disk.
    """

    directory: Path
    host: int
    address: str
    scratch: Path
    token_file: Path


class RayNode:
    """This host's processes of one epoch."""

    def __init__(self, place: RayPlace, part: str, raylet: asyncio.subprocess.Process) -> None:
        """`join` makes one."""
        self._place, self._part, self._raylet = place, part, raylet

    @classmethod
    async def join(cls, place: RayPlace, *, epoch: int, address: str, socket: Path) -> "RayNode":
        """Start this host's processes; `address` is the epoch's, `socket` that of this host's agent.

        Returns at once: that the host has joined is seen by the leader, that it could not is seen by `ended`.
        """
        part = node_part(place.host, epoch)
        session = session_folder(place, part)
        for folder in (session / "logs", session / "sockets"):
            folder.mkdir(parents=True)
        raylet = await processes.start(
            *_raylet(place, RayAddress.parse(address), part),
            environment={**environment(place, part), SOCKET_VARIABLE: str(socket)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        return cls(place, part, raylet)

    async def ended(self) -> str:
        """Wait until the raylet has died; how, and the last error it wrote."""
        code = await self._raylet.wait()
        log = session_folder(self._place, self._part) / "logs" / "raylet.err"
        return f"Ray on host {self._place.host} ended {how(code)}{last_error(log)}"

    async def close(self) -> None:
        """End all of its processes at once, and remove their files. Closing again does nothing."""
        await remove(self._place, self._part)
        await self._raylet.wait()


def node_part(host: int, epoch: int) -> str:
    """The name of a host's part of an epoch."""
    return f"node-{epoch}-{host}"


def folder_of(place: RayPlace, part: str) -> Path:
    """The only folder that a part of Ray writes to, its temporary one; short, for sockets are in it."""
    return place.scratch / part


def session_folder(place: RayPlace, part: str) -> Path:
    """The folder that Ray makes below its temporary one for a session."""
    return folder_of(place, part) / SESSION


def environment(place: RayPlace, part: str) -> dict[str, str]:
    """The whole environment of one part of Ray: nothing is inherited but what Python needs to start."""
    return {
        **processes.bare_environment(),
        **_variables(place, part),
        "HOME": str(folder_of(place, part)),  # Ray would look there for a token of its own
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(place.token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The only way to make ray.init keep a loopback address on Linux.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(not ipaddress.ip_address(place.address).is_loopback)),
        "RAY_memory_monitor_refresh_ms": "0",  # it would end a trainer's neighbours when memory is short
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # the agents' input ends with the raylet
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "5",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    }


async def remove(place: RayPlace, part: str) -> None:
    """End every process of a part of Ray, wherever its parent went, and take away its files."""
    await asyncio.to_thread(processes.end_carrying, _variables(place, part))
    await asyncio.to_thread(shutil.rmtree, folder_of(place, part), ignore_errors=True)


def resource_of(host: int) -> str:
    """The resource that one host has and no other, by which an actor is put there."""
    return f"shardwise_host_{host}"


def ray_file(*parts: str) -> Path:
    """A file of the installed Ray, found without importing it."""
    found = importlib.util.find_spec("ray")
    assert found is not None, "ray is a dependency of this package"
    assert found.submodule_search_locations is not None, "ray is a package"
    return Path(found.submodule_search_locations[0]).joinpath(*parts)


def how(code: int) -> str:
    """An exit code in words."""
    return f"on {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def last_error(log: Path) -> str:
    """What one of Ray's programs logged last as an error, or as anything, after a colon; empty if it logged nothing."""
    with contextlib.suppress(FileNotFoundError):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        if lines:
            return f": {_ERROR.sub('', (errors or lines)[-1])[:_WORDS]}"
    return ""


def _variables(place: RayPlace, part: str) -> dict[str, str]:
    """What every process of a part has in its environment, and no other process."""
    return {**processes.mark(place.directory, place.host), RAY_VARIABLE: part}


def _raylet(place: RayPlace, address: RayAddress, part: str) -> list[str]:
    """The command of a raylet; the names of its flags are Ray's."""
    home, session = folder_of(place, part), session_folder(place, part)
    flags = {
        "gcs-address": address.gcs,
        "cluster-id": address.cluster,
        "session-name": SESSION,
        "node_id": secrets.token_hex(28),
        "node_ip_address": place.address,
        "node_manager_port": 0,
        "object_manager_port": 0,
        "min_worker_port": 0,
        "max_worker_port": 0,
        "raylet_socket_name": session / "sockets" / "raylet",
        "store_socket_name": session / "sockets" / "store",
        "object_store_memory": _STORE_BYTES,
        "plasma_directory": home,
        "fallback_directory": home,
        # Without the first two a raylet fails a check of its own.
        "static_resource_list": f"memory,1,object_store_memory,{_STORE_BYTES},{resource_of(place.host)},1",
        "maximum_startup_concurrency": 1,
        "num_prestart_python_workers": 0,
        "python_worker_command": subprocess.list2cmdline(_worker(place, address, part)),
        "temp_dir": home,
        "session_dir": session,
        "resource_dir": session,
        "log_dir": session / "logs",
        "stdout_filepath": session / "logs" / "raylet.out",
        "stderr_filepath": session / "logs" / "raylet.err",
        "dashboard_agent_command": _UNUSED_AGENT,
        "runtime_env_agent_command": _UNUSED_AGENT,
        "metrics-agent-port": _UNUSED_PORT,
        "metrics_export_port": _UNUSED_PORT,
        "runtime_env_agent_port": _UNUSED_PORT,
        "dashboard_agent_listen_port": _UNUSED_PORT,
    }
    command = [str(ray_file("core", "src", "ray", "raylet", "raylet")), *(f"--{k}={v}" for k, v in flags.items())]
    return [*command, "--head"] if place.host == 0 else command


def _worker(place: RayPlace, address: RayAddress, part: str) -> list[str]:
    """The command with which a raylet starts a worker; it fills in the words in capitals."""
    home, session = folder_of(place, part), session_folder(place, part)
    flags = {
        "node-ip-address": place.address,
        "node-manager-port": "RAY_NODE_MANAGER_PORT_PLACEHOLDER",
        "object-store-name": session / "sockets" / "store",
        "raylet-name": session / "sockets" / "raylet",
        "redis-address": None,
        "metrics-agent-port": _UNUSED_PORT,
        "runtime-env-agent-port": 0,
        "gcs-address": address.gcs,
        "session-name": SESSION,
        "temp-dir": home,
        "webui": "",
        "cluster-id": address.cluster,
    }
    command = [sys.executable, "-m", "shardwise.launcher.ray_worker", *(f"--{k}={v}" for k, v in flags.items())]
    return [*command, "RAY_WORKER_DYNAMIC_OPTION_PLACEHOLDER"]
