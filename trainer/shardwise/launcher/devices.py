"""What the devices of each host must know of the others: variables that change with the hosts' addresses.

Called by `incarnation.py` for every start of the trainers, so that no address of a host that was replaced survives. The
variables that stay the same come with the class of machine, in the pod. Pure.

TPUs are told by libtpu's names: the hosts of one slice find each other through TPU_*, the slices through MEGASCALE_*.
GPUs and simulated devices need nothing beside the coordinator of jax.distributed.
"""

from collections.abc import Sequence

_PROCESS_PORT = 8476
_SLICES_PORT = 8081  # not 8080, libtpu's default, which Ray's metrics would use as well


def device_variables(platform: str, addresses: Sequence[str], *, num_slices: int, rank: int) -> dict[str, str]:
    """The variables of one rank's trainer; `addresses` are the ips of all hosts, slice by slice."""
    return _tpu(addresses, num_slices, rank) if platform == "tpu" else {}


def _tpu(addresses: Sequence[str], num_slices: int, rank: int) -> dict[str, str]:
    hosts = len(addresses) // num_slices
    number, worker = divmod(rank, hosts)
    own_slice = addresses[number * hosts : (number + 1) * hosts]
    variables = {
        "TPU_WORKER_ID": str(worker),
        "TPU_WORKER_HOSTNAMES": ",".join(own_slice),
        "TPU_PROCESS_ADDRESSES": ",".join(f"{address}:{_PROCESS_PORT}" for address in own_slice),
        "TPU_PROCESS_PORT": str(_PROCESS_PORT),
    }
    if num_slices == 1:
        return variables  # with MEGASCALE_* a slice would wait for others
    return variables | {
        "MEGASCALE_NUM_SLICES": str(num_slices),
        "MEGASCALE_SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": addresses[0],
        "MEGASCALE_PORT": str(_SLICES_PORT),
    }
