"""CUDA's headers as the fake driver knows them: status codes, the types of functions, the layout of structures."""

import ctypes as C
import struct

OK, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE = 0, 1, 2, 3, 100
INVALID_IMAGE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND, ILLEGAL_ADDRESS = 200, 201, 400, 500, 700
ERRORS = {
    INVALID_VALUE: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    OUT_OF_MEMORY: ("CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    NOT_INITIALIZED: ("CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    NO_DEVICE: ("CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    INVALID_IMAGE: ("CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    INVALID_CONTEXT: ("CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    INVALID_HANDLE: ("CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    NOT_FOUND: ("CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    ILLEGAL_ADDRESS: ("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
}
TEXTS = {code: tuple(C.create_string_buffer(t.encode()) for t in texts) for code, texts in ERRORS.items()}

u, i, z, p, d = C.c_uint, C.c_int, C.c_size_t, C.c_void_p, C.c_ulonglong
PROTOTYPES = {
    "cuInit": (u,),
    "cuGetErrorName": (i, p),
    "cuGetErrorString": (i, p),
    "cuDriverGetVersion": (p,),
    "cuDeviceGetCount": (p,),
    "cuDeviceGet": (p, i),
    "cuDeviceGetName": (p, i, i),
    "cuDeviceTotalMem_v2": (p, i),
    "cuDeviceGetAttribute": (p, i, i),
    "cuDevicePrimaryCtxRetain": (p, i),
    "cuCtxSetCurrent": (p,),
    "cuMemAlloc_v2": (p, z),
    "cuMemFree_v2": (d,),
    "cuMemGetInfo_v2": (p, p),
    "cuMemcpyHtoDAsync_v2": (d, p, z, p),
    "cuMemcpyDtoHAsync_v2": (p, d, z, p),
    "cuMemcpyDtoDAsync_v2": (d, d, z, p),
    "cuMemsetD8Async": (d, C.c_ubyte, z, p),
    "cuStreamCreate": (p, u),
    "cuStreamSynchronize": (p,),
    "cuEventCreate": (p, u),
    "cuEventElapsedTime": (p, p, p),
    "cuEventRecord": (p, p),
    "cuEventSynchronize": (p,),
    "cuStreamWaitEvent": (p, p, u),
    "cuStreamQuery": (p,),
    "cuMemHostAlloc": (p, z, u),
    "cuMemFreeHost": (p,),
    "cuDeviceCanAccessPeer": (p, i, i),
    "cuCtxEnablePeerAccess": (p, u),
    "cuMemcpyPeerAsync": (d, p, d, p, z, p),
    "cuPointerGetAttribute": (p, i, d),
    "cuEventDestroy_v2": (p,),
    "cuModuleLoadData": (p, p),
    "cuModuleUnload": (p,),
    "cuModuleGetFunction": (p, p, C.c_char_p),
    "cuFuncGetAttribute": (p, i, p),
    "cuFuncSetAttribute": (p, i, i),
    "cuLaunchKernelEx": (p, p, p, p),
    "cuGraphCreate": (p, u),
    "cuGraphDestroy": (p,),
    "cuGraphAddKernelNode": (p, p, p, z, p),
    "cuGraphAddEventRecordNode": (p, p, p, z, p),
    "cuGraphAddDependencies_v2": (p, p, p, p, z),
    "cuGraphExecKernelNodeSetParams": (p, p, p),
    "cuGraphInstantiateWithFlags": (p, p, d),
    "cuGraphExecDestroy": (p,),
    "cuGraphUpload": (p, p),
    "cuGraphLaunch": (p, p),
}
CONFIG = struct.Struct("@7I4xPPI")  # CUlaunchConfig
NODE = struct.Struct("@P7I4xPP")  # CUDA_KERNEL_NODE_PARAMS of CUDA 9 to 11
H200 = {1: 1024, 5: 2**31 - 1, 6: 65535, 7: 65535, 10: 32, 12: 65536, 16: 132, 38: 62914560, 75: 9, 76: 0, 97: 232448}


class Misuse(Exception):
    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Handle:
    """What a handle stands for, with fields as its kind needs."""

    def __init__(self, kind, device, **fields):
        self.kind, self.device, self.alive = kind, device, True
        self.__dict__.update(fields)
