"""Everything of Ray's that Ray does not document: flags, variables, file names, modules. No other file may use such.

The public way is `ray start`, which is not taken for three reasons. It listens on every interface, because it replaces
127.0.0.1 by the machine's address. It starts five more programs on each host (dashboard, its agent, log monitor,
reaper, set-up of environments), none of which is used here. And it takes several seconds of Python: `ray start --head`
of one node took 17 s, where a whole session of two hosts, opened and closed this way, took 4 to 5 s on the same busy
machine.
docs/decisions/0008-ray-without-ray-start.md has the figures, the alternatives and the pitfalls.

Ray is pinned exactly. Before the pin is moved, `tests/launcher/ray/test_private.py` names what a release has removed.
Importing this module does not import Ray, which only the driver and the workers can afford.
"""

import importlib.util
import ipaddress
import logging
import os
import runpy
import secrets
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.launcher.system.processes import own_module

WORKER = ("_private", "workers", "default_worker.py")
RAYLET = ("core", "src", "ray", "raylet", "raylet")
GCS_SERVER = ("core", "src", "ray", "gcs", "gcs_server")
RAYLET_OF_WORKER = "RAY_RAYLET_PID"  # the variable of a worker's that names the raylet that has started it
LONGEST_SOCKET_ALONE = "session_2026-12-31_23-59-59_999999_4194304/sockets/plasma_store"  # of `start_alone`

_SESSION = "s"  # every session has folders of its own, so all of them can have the same name
_STORE_BYTES = 80 << 20  # Ray's minimum is 75 MiB; the file is sparse, and nothing is ever stored
_UNUSED_PORT = 1  # of agent programs that do not run: with 0 the raylet would wait until they report their port
_UNUSED_AGENT = 'sh -c "read line"'  # the raylet insists on two agent programs and ends with them; these end with it
_SETUP_ARGUMENTS = ("--language=", "--serialized-runtime-env-context=")


def ray_file(parts: tuple[str, ...]) -> Path:
    """Return a file of the installed Ray, found without importing it."""
    found = importlib.util.find_spec("ray")
    assert found is not None, "ray is a dependency of this package"
    assert found.submodule_search_locations is not None, "ray is a package"
    return Path(found.submodule_search_locations[0]).joinpath(*parts)


def session_folder(home: Path) -> Path:
    """Return the folder that Ray makes for a session below its temporary folder `home`."""
    return home / _SESSION


def raylet_socket(home: Path) -> Path:
    """Return the raylet's unix socket below `home`; no other one has a longer path."""
    return session_folder(home) / "sockets" / "raylet"


def port_file(home: Path, node_id: str) -> Path:
    """Return the file in which the head writes the port that it got from the kernel."""
    return session_folder(home) / f"gcs_server_port_{node_id}"


def variables(home: Path, *, ip: str, token_file: Path) -> dict[str, str]:
    """Return the environment variables of all of Ray's processes that write to `home` and listen on `ip`."""
    return {
        "HOME": str(home),  # Ray would look there for a token of its own
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        # The only way to make ray.init keep a loopback address on Linux.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": str(int(not ipaddress.ip_address(ip).is_loopback)),
        "RAY_memory_monitor_refresh_ms": "0",  # it would kill a trainer's neighbours when memory is short
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_enable_pipe_based_agent_to_parent_health_check": "1",  # the input of its agents ends with the raylet
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "5",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    }


def gcs_server_command(home: Path, *, ip: str, node_id: str) -> list[str]:
    """Return the command of a session's head."""
    session = session_folder(home)
    flags = {
        "node-ip-address": ip,
        "gcs_server_port": 0,
        "node-id": node_id,
        "session-name": _SESSION,
        "session-dir": session,
        **_logs(session / "logs", "gcs"),
        "config_list": "e30=",  # {} in base64
        "metrics-agent-port": -1,
    }
    return [str(ray_file(GCS_SERVER)), *_arguments(flags)]


def raylet_command(home: Path, *, ip: str, gcs: str, cluster: str, resource: str, head: bool) -> list[str]:
    """Return the command of a host's raylet.

    Args:
        home: the folder it writes to.
        ip: the address to listen on.
        gcs: the head's address, `host:port`.
        cluster: the id that the head has given the cluster.
        resource: the name of a resource that only this host has, so that an actor can be placed here.
        head: whether the session's head runs on this host.

    """
    session = session_folder(home)
    flags = {
        "gcs-address": gcs,
        "cluster-id": cluster,
        "session-name": _SESSION,
        "node_id": secrets.token_hex(28),
        "node_ip_address": ip,
        "node_manager_port": 0,
        "object_manager_port": 0,
        "min_worker_port": 0,
        "max_worker_port": 0,
        "raylet_socket_name": raylet_socket(home),
        "store_socket_name": session / "sockets" / "store",
        "object_store_memory": _STORE_BYTES,
        "plasma_directory": home,
        "fallback_directory": home,
        # Without the first two a raylet fails a check of its own.
        "static_resource_list": f"memory,1,object_store_memory,{_STORE_BYTES},{resource},1",
        "maximum_startup_concurrency": 1,
        "num_prestart_python_workers": 0,
        "python_worker_command": subprocess.list2cmdline(worker_command(home, ip=ip, gcs=gcs, cluster=cluster)),
        "temp_dir": home,
        "session_dir": session,
        "resource_dir": session,
        **_logs(session / "logs", "raylet"),
        "dashboard_agent_command": _UNUSED_AGENT,
        "runtime_env_agent_command": _UNUSED_AGENT,
        "metrics-agent-port": _UNUSED_PORT,
        "metrics_export_port": _UNUSED_PORT,
        "runtime_env_agent_port": _UNUSED_PORT,
        "dashboard_agent_listen_port": _UNUSED_PORT,
    }
    return [str(ray_file(RAYLET)), *_arguments(flags), *(["--head"] if head else [])]


def worker_command(home: Path, *, ip: str, gcs: str, cluster: str) -> list[str]:
    """Return the command with which a raylet starts a worker. It replaces the placeholders in capitals itself."""
    session = session_folder(home)
    flags = {
        "node-ip-address": ip,
        "node-manager-port": "RAY_NODE_MANAGER_PORT_PLACEHOLDER",
        "object-store-name": session / "sockets" / "store",
        "raylet-name": raylet_socket(home),
        "redis-address": None,
        "metrics-agent-port": _UNUSED_PORT,
        "runtime-env-agent-port": 0,
        "gcs-address": gcs,
        "session-name": _SESSION,
        "temp-dir": home,
        "webui": "",
        "cluster-id": cluster,
    }
    return [*own_module("shardwise.launcher.ray.worker"), *_arguments(flags), "RAY_WORKER_DYNAMIC_OPTION_PLACEHOLDER"]


def run_worker() -> None:
    """Become Ray's worker, without the set-up step that Ray puts before it.

    That step would import Ray a second time, only to prepare an environment that is the host's own in any case.
    """
    sys.argv = [argument for argument in sys.argv if not argument.startswith(_SETUP_ARGUMENTS)]
    runpy.run_path(str(ray_file(WORKER)), run_name="__main__")


class Head:
    """The driver's own connection to the head, for what comes before `ray.init`."""

    def __init__(self, gcs: str) -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]  # noqa: PLC0415  a compiled module, see above

        self._client = GcsClient(address=gcs)

    def register_session(self) -> str:
        """Store what `ray start` would, and return the cluster's id. Without it, driver and workers find no session."""
        from ray._common.usage import usage_lib  # noqa: PLC0415  see the module's docstring
        from ray._private import ray_constants  # noqa: PLC0415  see the module's docstring

        self._client.internal_kv_put(b"session_name", _SESSION.encode(), True, ray_constants.KV_NAMESPACE_SESSION)
        usage_lib.put_cluster_metadata(self._client, ray_init_cluster=False)
        cluster: str = self._client.cluster_id.hex()
        return cluster

    def has_raylet(self, home: str) -> bool:
        """Return whether the raylet that writes to `home` has joined the session."""
        return any(node.temp_dir == home for node in self._client.get_all_node_info(timeout=5).values())


def connect(*, gcs: str, ip: str, home: str) -> None:
    """Join the session as its driver, through the raylet of this host that writes to `home`."""
    import ray  # noqa: PLC0415  see the module's docstring

    ray.init(address=gcs, _node_ip_address=ip, _temp_dir=home, log_to_driver=False, job_config=_importing_as_we_do())


def start_alone(*, home: Path, num_workers: int, variables_of_workers: Mapping[str, str]) -> None:
    """Start Ray on this machine for this process alone, with its files in `home`. It ends with this process."""
    # Before the import: no program that can reach this machine may hand a task to it.
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32), RAY_USAGE_STATS_ENABLED="0")
    import ray  # noqa: PLC0415  see the module's docstring

    ray.init(
        num_cpus=num_workers,
        object_store_memory=_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        runtime_env={"env_vars": dict(variables_of_workers)},
        _temp_dir=str(home),
        job_config=_importing_as_we_do(),
    )


def _importing_as_we_do() -> Any:
    """Return what keeps Ray from having its workers import from this process's working directory before all else."""
    from ray.job_config import JobConfig  # noqa: PLC0415  see the module's docstring

    return JobConfig(_client_job=True)  # as of a client, whose working directory is another machine's


def _logs(folder: Path, name: str) -> dict[str, Path]:
    return {"log_dir": folder, "stdout_filepath": folder / f"{name}.out", "stderr_filepath": folder / f"{name}.err"}


def _arguments(flags: Mapping[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]
