"""CUDA's driver interface: the names of its functions and the numbers that its headers give to attributes."""

from __future__ import annotations

from types import MappingProxyType

from nbxtensor.backend.abi import Abi

__all__ = [
    "CUDA",
    "DEVICE_ATTRIBUTES",
    "DEVICE_OF_ADDRESS",
    "EARLY_START",
    "FUNCTION_ATTRIBUTES",
    "NON_BLOCKING",
    "NOT_READY",
    "NO_DEVICE",
    "PROGRAMMATIC_LAUNCH",
    "REACHED_ALREADY",
    "WRONG_CONTEXT",
]

CUDA = Abi(
    name="cuda",
    library="libcuda.so.1",
    symbols=MappingProxyType(
        {
            "initialise": "cuInit",
            "error_name": "cuGetErrorName",
            "error_text": "cuGetErrorString",
            "driver_version": "cuDriverGetVersion",
            "device_count": "cuDeviceGetCount",
            "device": "cuDeviceGet",
            "device_name": "cuDeviceGetName",
            "device_memory": "cuDeviceTotalMem_v2",
            "device_attribute": "cuDeviceGetAttribute",
            "retain_context": "cuDevicePrimaryCtxRetain",
            "use_context": "cuCtxSetCurrent",
            "allocate": "cuMemAlloc_v2",
            "free": "cuMemFree_v2",
            "memory_info": "cuMemGetInfo_v2",
            "copy_in": "cuMemcpyHtoDAsync_v2",
            "copy_out": "cuMemcpyDtoHAsync_v2",
            "copy": "cuMemcpyDtoDAsync_v2",
            "allocate_host": "cuMemHostAlloc",
            "free_host": "cuMemFreeHost",
            "can_reach": "cuDeviceCanAccessPeer",
            "reach": "cuCtxEnablePeerAccess",
            "copy_peer": "cuMemcpyPeerAsync",
            "address_attribute": "cuPointerGetAttribute",
            "fill": "cuMemsetD8Async",
            "make_stream": "cuStreamCreate",
            "wait_stream": "cuStreamSynchronize",
            "make_event": "cuEventCreate",
            "record_event": "cuEventRecord",
            "wait_event": "cuEventSynchronize",
            "hold_stream": "cuStreamWaitEvent",
            "stream_state": "cuStreamQuery",
            "elapsed": "cuEventElapsedTime",
            "destroy_event": "cuEventDestroy_v2",
            "load_module": "cuModuleLoadData",
            "unload_module": "cuModuleUnload",
            "function": "cuModuleGetFunction",
            "function_attribute": "cuFuncGetAttribute",
            "set_function_attribute": "cuFuncSetAttribute",
            "launch": "cuLaunchKernelEx",
            "make_graph": "cuGraphCreate",
            "destroy_graph": "cuGraphDestroy",
            "add_kernel": "cuGraphAddKernelNode",
            "add_event": "cuGraphAddEventRecordNode",
            "add_edges": "cuGraphAddDependencies_v2",
            "set_kernel": "cuGraphExecKernelNodeSetParams",
            "instantiate": "cuGraphInstantiateWithFlags",
            "destroy_instance": "cuGraphExecDestroy",
            "upload": "cuGraphUpload",
            "launch_graph": "cuGraphLaunch",
        }
    ),
    out_of_memory=2,
    driver="NVIDIA",
)
"""The functions that the backend calls; every driver from CUDA 11.8 on has them, but for add_edges (`EARLY_START`)."""

EARLY_START = 12030
"""The driver version, CUDA 12.3, from which on edges of a graph can let a launch start early."""

NO_DEVICE = 100
"""CUDA_ERROR_NO_DEVICE."""

REACHED_ALREADY = 704
"""CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED."""

DEVICE_OF_ADDRESS = 9
"""CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: the number of the device that has an address."""

NOT_READY = 600
"""CUDA_ERROR_NOT_READY: a stream has work that is not done."""

NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: a stream that does not wait for the legacy default stream."""

DEVICE_ATTRIBUTES = MappingProxyType(
    {
        "dispatch.max_threads_per_block": 1,
        "grid_x": 5,
        "grid_y": 6,
        "grid_z": 7,
        "memory.warp_size": 10,
        "memory.max_registers_per_block": 12,
        "compute.units": 16,
        "memory.l2_nbytes": 38,
        "capability_major": 75,
        "capability_minor": 76,
        "memory.max_shared_memory_per_block": 97,
    }
)
"""CUdevice_attribute by the fact it states; the last is what a program may opt in to."""

FUNCTION_ATTRIBUTES = MappingProxyType(
    {"max_threads": 0, "static_shared_nbytes": 1, "local_nbytes": 3, "registers": 4, "max_dynamic_shared_nbytes": 8}
)
"""CUfunction_attribute by what it states."""

PROGRAMMATIC_LAUNCH = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""

WRONG_CONTEXT = frozenset({201, 400})
"""CUDA_ERROR_INVALID_CONTEXT and CUDA_ERROR_INVALID_HANDLE: what a launch answers that finds the thread's current
context to be another than its function's."""
