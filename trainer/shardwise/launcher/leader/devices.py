"""The environment variables by which the devices of one host find those of the others.

They are made again for every attempt, so that no address of a replaced host survives. Variables that never change come
with the class of machine, in the pod. Pure.

The names for TPUs are libtpu's: the hosts of one slice find each other by TPU_*, the slices by MEGASCALE_*. GPUs and
simulated devices need nothing but the coordinator of jax.distributed.
"""

from collections.abc import Sequence

_PROCESS_PORT = 8476
_SLICES_PORT = 8081  # not 8080, libtpu's default, which Ray's metrics use by default too


def device_variables(platform: str, addresses: Sequence[str], *, num_slices: int, rank: int) -> dict[str, str]:
    """Return the variables of one rank's trainer; `addresses` are the ips of all hosts, slice by slice."""
    if platform != "tpu":
        return {}
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
        return variables  # with MEGASCALE_* a single slice would wait for others
    return variables | {
        "MEGASCALE_NUM_SLICES": str(num_slices),
        "MEGASCALE_SLICE_ID": str(number),
        "MEGASCALE_COORDINATOR_ADDRESS": addresses[0],
        "MEGASCALE_PORT": str(_SLICES_PORT),
    }
