# SPDX-License-Identifier: BSD-3-Clause
"""A PyTorch with the devices simulated:0 and simulated:1: import this before berth.

Their memory cannot be touched, and their streams do their work late: what is not waited for shows.
"""

import contextlib
import ctypes
import importlib.util
import os
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
NATIVE = os.path.join(os.environ["BERTH_BUILD"], "tests/python/_native.abi3.so")
N_DEVICES = 2


def load_native():
    """The package's module with simulated devices, in the place of the one without."""
    spec = importlib.util.spec_from_file_location("berth._native", NATIVE)
    sys.modules["berth._native"] = importlib.util.module_from_spec(spec)
    library = ctypes.CDLL(NATIVE, ctypes.RTLD_GLOBAL)
    address, size = ctypes.c_size_t, ctypes.c_size_t
    library.stand_in_write_later.argtypes = ctypes.c_int, address, ctypes.c_char_p, size
    library.stand_in_event.restype = library.stand_in_allocate.restype = address
    library.stand_in_event_close.argtypes = ctypes.c_int, address
    library.stand_in_limit.argtypes = (ctypes.c_uint64,)
    return library


def load_backend(folder):
    """Compiles the part that PyTorch wants in C++."""
    root = os.path.dirname(torch.__file__)
    path = os.path.join(folder, "backend.so")
    subprocess.run([os.environ.get("CXX", "g++"), "-std=c++20", "-shared", "-fPIC", "-O0",
                    f"-isystem{root}/include", f"-isystem{root}/include/torch/csrc/api/include",
                    f"{HERE}/backend.cpp", "-o", path, f"-L{root}/lib", "-lc10", "-ltorch_cpu"], check=True)
    return ctypes.CDLL(path)


class Event:
    """As torch.cuda.Event."""

    cuda_event = 0
    n_live = 0

    def record(self):
        self.ordinal = Module.current_device()
        self.cuda_event = native.stand_in_event(self.ordinal)
        Event.n_live += 1

    def __del__(self):
        if not self.cuda_event:  # there was no memory to record it
            return
        Event.n_live -= 1
        native.stand_in_event_close(self.ordinal, self.cuda_event)


class Module:
    """As torch.cuda."""

    Event = Event
    is_capturing = False
    ordinals = [0]

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def device_count():
        return N_DEVICES

    @staticmethod
    def _is_in_bad_fork():
        return False

    @staticmethod
    def manual_seed_all(_seed):
        pass

    @classmethod
    def current_device(cls):
        return cls.ordinals[-1]

    @classmethod
    def is_current_stream_capturing(cls):
        return cls.is_capturing

    @classmethod
    @contextlib.contextmanager
    def device(cls, device):
        cls.ordinals.append(torch.device(device).index or 0)
        backend.stand_in_select(cls.ordinals[-1])
        try:
            yield
        finally:
            cls.ordinals.pop()
            backend.stand_in_select(cls.ordinals[-1])


class Hooks(torch._C._acc.PrivateUse1Hooks):
    def is_available(self):
        return True

    def has_primary_context(self, _ordinal):
        return True

    def is_built(self):
        return True


native = load_native()
torch.utils.rename_privateuse1_backend("simulated")
torch._register_device_module("simulated", Module)
backend = load_backend(os.environ["STAND_IN_FOLDER"])
hooks = Hooks()
torch._C._acc.register_python_privateuseone_hook(hooks)
