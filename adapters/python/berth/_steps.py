# SPDX-License-Identifier: BSD-3-Clause
"""The next step of a refusal, in Python: the library's own steps are commands of a shell.

What only another program does (7z, zip, unrar, git lfs), and what `berth` does and the package does not, stays.
"""

import re

TRUSTED = ". If you trust the file: "
RUNS = ", which runs what the file asks for"
NEW = '"NEW"'
# What a message says in front of its step; the step, of which {path} is the word for the file; what stands in its place.
STEPS = [
    (r"a TorchScript archive \(.*\): .* without values to read", r": `berth ls -r\b{path}` lists its records",
     f"{TRUSTED}torch.jit.load(f){RUNS}"),
    (r"a torch\.package archive \(.*\): .* without values to read", r": `berth ls -r\b{path}` lists its records",
     f"{TRUSTED}torch.package.PackageImporter(f){RUNS}"),
    (r"", r": `berth ls -r\b{path}` lists its records", ": zipfile.ZipFile(f).namelist() lists its records"),
    (r"\.pt2 program of torch\.export, not a checkpoint", r": `python3 -c .*` saves its weights as one, but .*",
     f"{TRUSTED}torch.export.load(f).state_dict{RUNS}"),
    (r"\.pt2 program of torch\.export, not a checkpoint", r": torch\.export\.load\(f\)\.state_dict is its weights, .*",
     f"{TRUSTED}torch.export.load(f).state_dict{RUNS}"),
    (r"an array of NumPy \(\.npy\), not a PyTorch checkpoint", r": `python3 -c .*` makes one of it (?P<if>if it holds .*)",
     r": torch.from_numpy(numpy.load(f)) is its tensor \g<if>"),
    (r"arrays of NumPy \(\.npz\), not a PyTorch checkpoint", r": `python3 -c .*` makes one of them (?P<if>if they are .*)",
     r": {k: torch.from_numpy(v) for k, v in numpy.load(f).items()} are its tensors, \g<if>"),
    (r"compressed by gzip", r": `gzip -dc\b{path}` unpacks it", ": berth.load(gzip.open(f)) reads it"),
    (r"compressed by bzip2", r": `bzip2 -dc\b{path}` unpacks it", ": berth.load(bz2.open(f)) reads it"),
    (r"compressed by (?:xz|lzma)", r": `xz -dc\b{path}` unpacks it", ": berth.load(lzma.open(f)) reads it"),
    (r"", r": `unzip\b{path}` unpacks it", f": zipfile.ZipFile(f).extractall({NEW}) unpacks it"),
    (r"", r"(?:: `berth convert\b{path}`) makes a checkpoint of its directory",
     ": berth.load of its directory reads it"),
    (r"bytes follow .*", r": `head -c (?P<n>\d+)\b{path}` leaves them out",
     r": `berth.load(io.BytesIO(data[:\g<n>]))` leaves them out, if data is all that is in the file"),
    (r"did not end\?", r": `head -c \d+\b{path}` keeps what is in front of it, which is whole",
     ": what is in front of it is whole, and berth.load(f) gives its first object"),
    (r"at byte (?P<n>\d+): several archives in one file: the last one begins here", r": `tail -c \+\d+\b{path}` takes it out",
     r": `berth.load(io.BytesIO(data[\g<n>:]))` takes it out, if data is all that is in the file"),
    (r"", r"(?:: `berth convert --set debug=off --set load\.repacked=accept\b{path} NEW\.pt` mends it"
     r"|: debug=off and load\.repacked=accept read it)",
     r': `with berth.config.patch("debug=off load.repacked=accept"): berth.load(f)` reads it'),
    # The step of weights_only=False follows.
    (r"which PyTorch's weights_only=True refuses, too", r": (?:`python3 -c .*`|PyTorch \(weights_only=False\)) saves it again, "
     r"but runs what is in it: only if you trust the file", ""),
    (r"", r": read it into memory or into a file, and open that",
     ': open it, `with open(path, "rb") as f`, and give f, which is read into memory'),
]
STEPS = [(re.compile(f"(?P<what>{what}){step.replace('{path}', '(?: .*)?')}" + r"\Z", re.DOTALL), instead)
         for what, step, instead in STEPS]
# The command's next step at the end of a refusal of what a pickle names.
OF_NAMES = re.compile(r" \(load\.unknown_globals=inert[^)]*\)(: `berth ls --set load\.unknown_globals=inert .*)?\Z",
                      re.DOTALL)


URL = re.compile(r"(?:https?|s3)://", re.IGNORECASE)


def in_python(message):
    """A message of the library's with the step that Python has, if it has one."""
    message = OF_NAMES.sub("", message)
    for step, instead in STEPS:
        found = step.search(message)
        if found:
            of_copy = ", where f is a copy of the object" if "(f)" in instead and URL.match(message) else ""
            return message[:found.end("what")] + found.expand(instead) + of_copy
    return message
