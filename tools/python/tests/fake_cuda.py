"""Arrays that say by DLPack that they lie on a CUDA device, for machines without one."""

import ctypes

import numpy as np


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64)]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_kept = []  # what capsules point to


class OnCuda:
    """A float32 array of NumPy's, said to be on `cuda:index`."""

    def __init__(self, array: np.ndarray, index: int = 0, device_type: int = 2):
        assert array.dtype == np.float32 and array.flags.c_contiguous
        self.array, self.device = array, (device_type, index)

    def __dlpack__(self, **asked):
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        managed = _Managed(_Tensor(self.array.ctypes.data, *self.device, self.array.ndim, 2, 32, 1,
                                   ctypes.addressof(shape), None, 0), None, None)
        _kept.append((self.array, shape, managed))
        return _capsule(ctypes.addressof(managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device
