# SPDX-License-Identifier: BSD-3-Clause
"""Opcodes and globals that are not allowed (P1)."""

import os
import pickletools
import sys

from bombs import Small
from pickles import PROTO, archive, text


class Forbidden(Small):
    ALLOWED = set("""APPEND APPENDS BINBYTES BINFLOAT BINGET BININT BININT1 BININT2 BINPERSID BINPUT
        BINUNICODE BUILD EMPTY_DICT EMPTY_LIST EMPTY_SET EMPTY_TUPLE GLOBAL LONG1 LONG_BINGET
        LONG_BINPUT MARK NEWFALSE NEWOBJ NEWTRUE NONE PROTO REDUCE SETITEM SETITEMS
        SHORT_BINBYTES SHORT_BINSTRING STOP TUPLE TUPLE1 TUPLE2 TUPLE3""".split())
    GLOBALS = ["os system", "posix system", "nt system", "subprocess Popen", "builtins eval",
               "builtins exec", "builtins getattr", "__builtin__ eval", "__builtin__ getattr",
               "__builtin__ bytes", "torch.hub load", "torch load", "torch.storage _load_from_bytes",
               "torch._utils _rebuild_device_tensor_from_numpy",
               "torch._utils _rebuild_device_tensor_from_cpu_tensor",
               "torch._utils _rebuild_wrapper_subclass", "torch._utils _rebuild_sparse_csr_tensor",
               "torch._utils _import_dotted_name", "torch._tensor _rebuild_from_type",
               "torch.nn.modules.linear Linear", "collections defaultdict", "collections deque",
               "numpy.core.multiarray _reconstruct", "numpy dtype", "functools partial",
               "operator attrgetter", "torch.serialization load", "torch.serialization _get_layout.",
               "torch Size.__class__", "torch Tensor.__reduce__", "torch._utils.os system",
               "_codecs decode", "torch.jit._script unpackage_script_module", "torch.cuda device",
               "torch FooStorage", "torch.storage _StorageBase", "copyreg _reconstructor",
               # What runs code, opens files or imports, as scanners know it and as they do not.
               "os execv", "os popen", "os spawnlp", "posix popen", "pty spawn", "socket socket",
               "subprocess check_output", "subprocess run", "commands getoutput",
               "builtins __import__", "builtins compile", "builtins open", "builtins breakpoint",
               "builtins globals", "builtins vars", "builtins type", "builtins map",
               "builtins object", "builtins print", "__builtin__ apply", "__builtin__ execfile",
               "__builtin__ exec", "__builtin__ open", "__builtin__ file", "__builtin__ getattr",
               "importlib import_module", "importlib.util spec_from_file_location", "imp load_source",
               "runpy run_path", "runpy _run_code", "pickle loads", "_pickle loads", "cPickle loads",
               "marshal loads", "types CodeType", "types FunctionType", "ctypes CDLL", "cffi FFI",
               "code interact", "pdb run", "bdb Bdb", "timeit timeit", "profile run",
               "cProfile run", "trace Trace.run", "doctest debug_script", "pip main",
               "ensurepip _run_pip", "idlelib.run Executive.runcode", "shutil rmtree", "sys exit",
               "webbrowser open", "urllib.request urlopen", "asyncio create_subprocess_shell",
               "multiprocessing.util _exit", "logging.config fileConfig", "site main", "io open",
               "_io FileIO", "codecs open", "_codecs lookup", "zipimport zipimporter",
               "linecache updatecache", "uuid _get_command_stdout", "operator methodcaller",
               "itertools starmap", "functools reduce", "collections Counter.__init__",
               "collections OrderedDict.__reduce__", "numpy.f2py.crackfortran getlincoef",
               "numpy.testing._private.utils runstring", "torch.hub load_state_dict_from_url",
               "torch.jit load", "torch.jit.unsupported_tensor_ops execWrapper", "torch.ops load_library",
               "torch.utils.cpp_extension load_inline", "torch.utils.collect_env run",
               "torch.utils.bottleneck.__main__ run_autograd_prof", "torch.package PackageImporter",
               "torch._inductor.codecache compile_file", "torch._dynamo.guards GuardBuilder.get",
               "torch.utils._config_module ConfigModule.load_config", "torch.multiprocessing spawn",
               "torch.fx.experimental.symbolic_shapes ShapeEnv.evaluate_guards_expression",
               "torch.distributed.rpc.internal _run_function", "torch.distributed.run main",
               "torch.cuda.amp.autocast_mode os", "torch.serialization os", "torch.storage io",
               "torch.storage pickle.loads", "torch._utils sys.modules", "torch._utils importlib",
               "torch.nn.parameter torch", "torch._tensor torch.load", "torch __builtins__.eval",
               # What is nearly allowed.
               "torch floatStorage", "Torch FloatStorage", "torch FloatStorage ", "torch  FloatStorage",
               " torch FloatStorage", "torch. FloatStorage", "torch.FloatStorage ", "torch FloatStorage.",
               "torch.cuda.sparse FloatStorage_", "torch float3", "torch float321", "torch dtype",
               "collections ordereddict", "collections OrderedDict2", "builtins Set", "builtins bytes",
               "__builtin__ sets", "_codecs Encode", "_codecs encode.", "torch._utils rebuild_tensor",
               "torch._utils _rebuild_tensor_v4", "torch.nn.parameter Buffer",
               "torch.nn.parameter UninitializedParameter", "torch.storage TypedStorage._new_shared",
               "torch.storage UntypedStorage.from_file", "torch UntypedStorage.from_file",
               "torch.UntypedStorage from_file", "__main__ Model", "torch ", " FloatStorage", " ", ". .",
               "torch\u00a0 FloatStorage", "t\u043erch FloatStorage", "torch Float\u017ftorage"]

    def named(self, pickle, says):
        """By every command, and that none says it slowly; how many they are."""
        results = self.all_commands(self.write("bad.pt", archive(pickle)))
        results.pop("copy")  # which takes records over
        for name, done in results.items():
            self.assertEqual(done.returncode, 1, (name, done.err))
            told = done.err if name != "verify" else done.out.decode()
            self.assertIn(says, told, name)
        return len(results)

    def test_every_other_opcode_is_named_with_its_byte(self):
        by_code = {opcode.code.encode("latin-1")[0]: opcode for opcode in pickletools.opcodes}
        n = n_named = 0
        for code in range(256):
            opcode = by_code.get(code)
            if opcode and opcode.name in self.ALLOWED:
                continue
            says = (f"opcode {opcode.name} (0x{code:02x}) is not allowed" if opcode else
                    f"0x{code:02x} is not a pickle opcode")
            n_named += self.named(PROTO + b"N" + bytes([code]) + b"\x00" * 16 + b".",
                                  f"data.pkl at byte 67: {says}")
            n += 1
        self.assertEqual(n, 256 - len(self.ALLOWED))
        print(f"forbidden opcodes: {n} named with their byte, {n_named} times by commands",
              file=sys.stderr)

    def test_every_other_global_is_named_with_its_byte(self):
        n_named = 0
        for name in self.GLOBALS:
            module, attribute = name.rsplit(" ", 1)
            pickle = PROTO + f"c{module}\n{attribute}\n".encode() + b")R."
            says = f"global {module} {attribute} is not allowed"
            if not all(word and word.isascii() and " " not in word for word in (module, attribute)):
                says = "GLOBAL with text that is not a dotted name"
            n_named += self.named(pickle, f"data.pkl at byte 66: {says}")
        print(f"forbidden globals: {len(self.GLOBALS)} named with their byte, {n_named} times by "
              "commands", file=sys.stderr)

    def test_a_long_name_of_a_global_is_cut(self):
        path = self.write("long.pt", archive(PROTO + b"c" + b"m" * 450 + b"\n" + b"n" * 450 + b"\n."))
        done = self.measure(["ls", path])
        self.assertEqual(done.returncode, 1)
        self.assertIn("data.pkl at byte 66: global mmmmmmm", done.err)

    def test_submodules_are_imported_by_nobody(self):
        """Every module of a name that is allowed, with each other name that is allowed."""
        modules = ["torch", "torch.storage", "torch._utils", "torch._tensor", "collections",
                   "_codecs", "builtins", "torch.nn.parameter", "torch.serialization"]
        names = ["FloatStorage", "TypedStorage", "_rebuild_tensor_v2", "OrderedDict", "encode", "set",
                 "Parameter", "_get_layout", "_rebuild_from_type_v2"]
        homes = {("torch", 0), ("torch.storage", 1), ("torch._utils", 2), ("collections", 3),
                 ("_codecs", 4), ("builtins", 5), ("torch.nn.parameter", 6),
                 ("torch.serialization", 7), ("torch._tensor", 8)}
        for module in modules:
            for i, name in enumerate(names):
                if (module, i) not in homes:
                    self.named(PROTO + f"c{module}\n{name}\n.".encode(),
                               f"global {module} {name} is not allowed")

    def test_inert_runs_nothing_either(self):
        witness = os.path.join(self.folder, "witness")
        pickle = (PROTO + b"cos\nsystem\n" + text(f"touch {witness}") + b"\x85R.")
        path = self.write("inert.pt", archive(pickle))
        done = self.berth("ls", path, "--set", "load.unknown_globals=inert")
        self.assertEqual(done.returncode, 0, done.err)
        self.assertFalse(os.path.exists(witness))

    def test_diff_looks_into_inert_objects(self):
        paths = []
        for n in (1, 2):
            made = b"ca\nB\n)\x81"
            state = b"}" + text("x") + b"K%csb" % n
            items = b"K%ca" % n + text("k") + b"K%cs" % n
            pickle = (PROTO + b"(" + made + items + b"c__builtin__\nset\n](" + made + state
                      + b"e\x85Rt.")
            paths.append(self.write(f"object{n}.pt", archive(pickle)))
        done = self.berth("diff", *paths, "--set", "load.unknown_globals=inert")
        self.assertEqual(done.returncode, 1, done.err)
        self.assertEqual(done.out.splitlines(),
                         [b"[0].list_items[0]: value: 1 | 2",
                          b"[0].dict_items['k']: value: 1 | 2",
                          b"[1][<object of 0>].__dict__['x']: value: 1 | 2", b"different: value: 3"])

    def test_diff_looks_into_inert_objects_that_are_keys(self):
        """They are matched by their texts, which are the same."""
        paths = []
        for word in ("x", "y"):
            made = b"ca\nB\n(" + text(word) + b"tR"
            pickle = PROTO + b"}(" + made + b"K\x01" + made + b"K\x05\x86K\x01u."
            paths.append(self.write(f"{word}.pt", archive(pickle)))
        done = self.berth("diff", *paths, "--set", "load.unknown_globals=inert")
        self.assertEqual(done.returncode, 1, done.err)
        self.assertEqual(done.out.splitlines(),
                         [b".keys[(<object of 1>, 5)][0][0]: value: 'x' | 'y'",
                          b".keys[<object of 1>][0]: value: 'x' | 'y'", b"different: value: 2"])
        done = self.berth("diff", paths[0], paths[0], "--set", "load.unknown_globals=inert")
        self.assertEqual(done.returncode, 0, done.out)
