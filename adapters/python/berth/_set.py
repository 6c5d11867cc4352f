# SPDX-License-Identifier: BSD-3-Clause
"""Checkpoints in several files: an index and its files, a directory of PyTorch's DCP, a folder."""

import collections
import json
import os
import queue
import re
import stat
import subprocess
import threading

from berth import _native
from berth._config import _text, config
from berth._errors import NO_OFFSET, make, shown
from berth._source import Url, is_path, name_of, path_bytes

COMMAND = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_command")
INDEX, DCP = b".index.json", b".metadata"
MODELS = (b".safetensors", b".pt", b".pth", b".bin", b".ckpt")
MAX_INDEX_NBYTES = 100_000_000  # as of the header of a safetensors file
MAX_URL_INDEX_NBYTES = 64 << 20  # U4: a server's word is enough for so many, as in the command
MOST_SHOWN = 200  # characters of what stands in an index
MOST_AT_ONCE = 8  # files of an index at a URL that are opened at the same time
# The command's words for a .metadata, and for a piece, that names code.
NOT_RUN = re.compile("nothing was run|is not allowed in a checkpoint")
COUNTS = ("nbytes", "storages_nbytes", "n_records", "n_storages", "n_crc32", "n_deflated")


def found(f):
    """What f names: an Index, a Dcp, the one model file of a folder, or f itself."""
    if isinstance(f, Url):
        return Index(f) if _is_index(f) else f
    if not is_path(f):
        return f
    path = path_bytes(f)
    if not os.path.isdir(path):
        return Index(path) if path.endswith(INDEX) else f
    names = sorted(os.listdir(path))
    if DCP in names:
        return Dcp(path)
    indices = [name for name in names if name.endswith(INDEX)]
    models = indices or [name for name in names if name.endswith(MODELS)]
    if len(models) != 1:
        shown = ", ".join(map(os.fsdecode, models[:5])) + (", ..." if len(models) > 5 else "")
        why = f"{len(models)} files that may be the checkpoint ({shown}): name one"
        raise _failed(path, f"the folder has {why if models else 'no index, no model file and no .metadata'}")
    return found(os.path.join(path, models[0]))


def _is_index(url):
    """A key of S3 may have ? and #, which begin no query there."""
    path = url if url.lower().startswith("s3://") else re.split("[?#]", url, maxsplit=1)[0]
    return path.endswith(INDEX.decode())


def _failed(path, why, status="BERTH_E_ARGUMENT", number=0):
    return make(status, f"{shown(name_of(path))}: {shown(why)}", number, NO_OFFSET, "")


def _in_json(value):
    """As it stands in the index, but for its length and blanks."""
    kinds = {dict: "an object", list: "an array"}
    if value and type(value) in kinds:
        return kinds[type(value)]
    if isinstance(value, int) and abs(value) >= 10**MOST_SHOWN:
        return "a number of many digits"
    text = json.dumps(value[:MOST_SHOWN + 1] if isinstance(value, str) else value, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."


def _is_name_below(name):
    """D2: whether it is a file in the index's folder, or below it, by the rule of the command (tools/common/shards.c)."""
    return bool(name) and "\0" not in name and not any("\ud800" <= c <= "\udfff" for c in name) and not any(
        part in ("", ".", "..") for part in name.split("/"))


class Index:
    """An index of transformers': {"metadata": {...}, "weight_map": {"NAME": "FILE", ...}}.

    path: bytes, or a Url
    weight_map: of texts, of which each file lies in the index's folder, or below it
    """

    container = "index"

    def __init__(self, path):
        self.path = path
        data = self._read_url(MAX_URL_INDEX_NBYTES) if isinstance(path, Url) else self._read(MAX_INDEX_NBYTES)
        try:
            parsed = json.loads(data.decode(), object_pairs_hook=_without_twins, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise self._refused(f"it is no JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise self._refused(f"it is {_in_json(parsed)}, not an object with a weight_map")
        if "weight_map" not in parsed:
            raise self._refused("it has no weight_map")
        self.weight_map, self.metadata = parsed["weight_map"], parsed.get("metadata")
        if not isinstance(self.weight_map, dict):
            raise self._refused(f"its weight_map is {_in_json(self.weight_map)}, not an object")
        self.files = {}  # a set with an order
        for key, name in self.weight_map.items():
            if not (isinstance(name, str) and (name in self.files or _is_name_below(name))):
                raise self._refused(f"the file of {_in_json(key)} is {_in_json(name)}, which is not a name of a file "
                                    "in the index's folder")
            self.files[name] = None

    def _read(self, most):
        try:
            with open(self.path, "rb", opener=_open_at_once) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise self._refused("it is no file: a pipe or a device is not read as one")
                data = file.read(most + 1)
        except OSError as error:
            status = "BERTH_E_NOT_FOUND" if isinstance(error, FileNotFoundError) else "BERTH_E_SYSTEM"
            raise _failed(self.path, f"cannot be opened: {error.strerror}", status, error.errno) from None
        if len(data) > most:
            raise self._refused(f"it has more than {most} bytes")
        return data

    def _read_url(self, most):
        data = _native.read_url(self.path, most)
        if data is None:
            raise self._refused(f"it has more than {most} bytes")
        return data

    def _refused(self, why):
        return _failed(self.path, f"is no index of a checkpoint: {why}", "BERTH_E_ARCHIVE")

    def path_of(self, name):
        if isinstance(self.path, Url):
            return Url(_native.url_beside(self.path, name))
        return os.path.join(os.path.dirname(self.path), path_bytes(name))

    def missing(self, name, file):
        return _failed(self.path, f'"{name[:200]}" is not in {file[:200]}', "BERTH_E_ARCHIVE")

    def load(self, load, opened):
        """The tensors that it names, in its order.

        load: of one file, a path or what `opened` gives: the file, opened, so that a load of it waits for less
        """
        values = {}
        for file, made in self.each(opened):
            values[file] = load(made)
        found = {}
        for name, file in self.weight_map.items():
            if not isinstance(values[file], dict) or name not in values[file]:
                raise self.missing(name, file)
            found[name] = values[file][name]
        return found

    def open(self, assignments):
        return Files(self, assignments), lambda: [self.path_of(file) for file in self.files]

    def each(self, opened):
        """Yields (file, opened(its path or URL)), in the order of the files, or raises what that raises.

        Those at a URL a few at once, on threads: each waits for its server. So the next ones are opened while the
        caller works with one.
        """
        if not isinstance(self.path, Url):
            for file in self.files:
                yield file, opened(self.path_of(file))
            return
        todo, made = collections.deque(self.files), {file: queue.SimpleQueue() for file in self.files}
        may_begin = threading.Semaphore(MOST_AT_ONCE)
        options = config.get_config_copy()  # of this thread

        def work():
            while may_begin.acquire():
                try:
                    file = todo.popleft()
                except IndexError:
                    return
                try:
                    with config.patch(options):
                        made[file].put((opened(self.path_of(file)), None))
                except BaseException as error:
                    made[file].put((None, error))

        threads = [threading.Thread(target=work, daemon=True) for _ in range(min(MOST_AT_ONCE, len(todo)))]
        try:
            for thread in threads:
                thread.start()
            for file in self.files:
                found, error = made[file].get()
                if error:
                    raise error
                yield file, found
                may_begin.release()
        finally:
            todo.clear()  # ^C does not wait for those that are being opened
            may_begin.release(MOST_AT_ONCE)


def _open_at_once(path, flags):
    """A pipe is not waited for (F1)."""
    return os.open(path, flags | os.O_NONBLOCK)


def _without_twins(pairs):
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return made


def _no_constant(word):
    raise ValueError(f"{word} is no JSON")


class Dcp:
    """A directory of torch.distributed.checkpoint. The package's command, which runs nothing, converts it."""

    container = "DCP directory"

    def __init__(self, path):
        self.path = path

    def _run(self, *words, out, to):
        """Runs the command on it. Returns (exit code, what it wrote if that is a pipe, what it said)."""
        options = [word for name, value in config.get_config_copy().items()
                   if name.startswith(("load.", "io.")) and not config.is_default(name)
                   for word in ("--set", f"{name}={_text(name, value)}")]
        done = subprocess.run([COMMAND, *words, *options, os.path.abspath(self.path), *out],
                              stdin=subprocess.DEVNULL, stdout=to, stderr=subprocess.PIPE, check=False)
        said = done.stderr.decode(errors="replace").strip().removeprefix("berth: ")
        return done.returncode, done.stdout, said or f"the command ended with {done.returncode}"

    def _converted(self):
        """A file in memory, with what dcp_to_torch_save would write."""
        file = open("berth", "w+b", opener=_native.open_memory)  # all in C: ^C finds no bare descriptor
        try:
            code, _, said = self._run("convert", "--to", "pt", out=["-"], to=file)
            if code != 0:
                raise self._refused(said)
        except BaseException:
            file.close()
            raise
        return file

    def verdict(self):
        """What `berth verify --json` says of it."""
        code, report, said = self._run("verify", "--json", "-q", out=[], to=subprocess.PIPE)
        if not report:
            raise self._refused(said) if code == 1 else _failed(self.path, said, "BERTH_E_SYSTEM")
        return json.loads(report)

    def said_of(self, reason):
        """The message of what is wrong with .metadata."""
        return str(self._refused(reason))

    def _refused(self, said):
        """The command's words, without its options."""
        words = re.sub(r" \(--set load\.unknown_globals=inert [^)]*\)", "", said)
        return _failed(self.path, words, "BERTH_E_FORBIDDEN" if NOT_RUN.search(said) else "BERTH_E_ARCHIVE")

    def load(self, load, _):
        """Its value. The tensors are pages of the converted file, so that there is no second copy."""
        with self._converted() as file:
            return load(f"/proc/self/fd/{file.fileno()}", mmap=True)

    def open(self, assignments):
        file = self._converted()
        return _native.open(file.fileno(), assignments), file.fileno  # which keeps the file


class Files:
    """The files of an index, as one native file: each of its tensors is in one of them."""

    def __init__(self, index, assignments):
        self._index, self._files, self._closed = index, {}, False
        try:
            for file, native in index.each(lambda path: _native.open(path, assignments)):
                self._files[file] = native
            names = {file: set(native.names()) for file, native in self._files.items()}
            for name, file in index.weight_map.items():
                if name not in names[file]:
                    raise index.missing(name, file)
        except BaseException:
            self.close()
            raise

    def close(self):
        self._closed = True
        for native in self._files.values():
            native.close()

    def natives(self):
        """(file of the index, native file), in the index's order."""
        return [(file, self._files[file]) for file in self._index.files]

    def metadata_of_all(self):
        """The texts that the __metadata__ of each file has; None: there are none."""
        self.is_legacy()
        all_texts = [(native.metadata() or {}).items() for native in self._files.values()]
        return dict(text for text in all_texts[0] if all(text in each for each in all_texts)) or None

    def is_legacy(self):
        if self._closed:
            raise ValueError("the file is closed")
        return any([native.is_legacy() for native in self._files.values()])

    def names(self):
        self.is_legacy()
        return list(self._index.weight_map)

    def of(self, name):
        """The native file that has a tensor."""
        self.is_legacy()
        quoted = re.fullmatch(r"\['([^'\\]*)'\]", name)
        file = self._index.weight_map.get(name) or (quoted and self._index.weight_map.get(quoted[1]))
        if not file:
            raise _failed(self._index.path, f"{name}: there is no such value", "BERTH_E_NOT_FOUND")
        return self._files[file]

    def tensor(self, name):
        return self.of(name).tensor(name)

    def value(self, name, *arguments):
        return self.of(name).value(name, *arguments)

    def slice(self, name, starts, lengths):
        return self.of(name).slice(name, starts, lengths)

    def read_slice(self, name, *arguments):
        self.of(name).read_slice(name, *arguments)

    def memory(self, name):
        return self.of(name).memory(name)

    def info(self):
        self.is_legacy()  # raises if this file is closed
        infos = [native.info() for native in self._files.values()]
        return {"container": Index.container, "n_files": len(infos), "n_tensors": len(self._index.weight_map),
                **{name: sum(info.get(name) or 0 for info in infos) for name in COUNTS}}

    def metadata(self):
        metadata = self._index.metadata
        return dict(metadata) if isinstance(metadata, dict) else None
