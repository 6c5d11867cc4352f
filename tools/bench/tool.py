# SPDX-License-Identifier: BSD-3-Clause
"""What the benchmarks share: options, the head of the report, the end of a run."""

import argparse
import datetime
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import machine

MIB = 1 << 20


def nbytes(text):
    units = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.rstrip("BKMGTi")
    unit = text[len(number):].removesuffix("iB")
    if not number.isdigit() or unit not in units or not int(number):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of bytes such as 4GiB")
    return int(number) * units[unit]


def parser(name, description):
    made = argparse.ArgumentParser(
        prog=f"tools/bench/{name}", description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="BERTH_BUILD names the folder of a built variant (default: build/release, built if "
               "need be), BERTH_PYTHON a Python with PyTorch and safetensors.")
    made.add_argument("--rounds", type=int, help="the number of rounds (5; --quick: 2)")
    made.add_argument("--folder", default=".", help="where files are written (here)")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE",
                      help="set an option of Berth; may be repeated")
    made.add_argument("--json", metavar="FILE", help="write all figures to FILE")
    made.add_argument("--quick", action="store_true",
                      help="only check that it works: 32 MiB each at most, 2 rounds")
    return made


def parse(made):
    """The parsed command line."""
    parsed = made.parse_args()
    if parsed.rounds is None:
        parsed.rounds = 2 if parsed.quick else 5
    if parsed.quick:
        parsed.size = min(parsed.size or 32 * MIB, 32 * MIB)
    if parsed.rounds < 1:
        made.error("--rounds must be at least 1")
    return parsed


def note(text):
    print(text, file=sys.stderr, flush=True)


def version_of(package):
    """None: it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# Above this, in processors, a report says that others were at work.
OTHERS = 0.2


def busy_seconds():
    """Of all processors together, since the machine began; what the host took from this machine counts."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, soft, steal = (int(word) for word in file.readline().split()[1:9])
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def others_use(options):
    """How many processors others use, while this program sleeps. A load average would still tell of its own last minute."""
    seconds = 0.1 if options.quick else 2
    begun, since = busy_seconds(), time.monotonic()
    time.sleep(seconds)
    return (busy_seconds() - begun) / (time.monotonic() - since)


def head(options, folder):
    """The head of the report; printed too."""
    import raw
    import torch

    whole = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
             "quick": options.quick, "rounds": options.rounds, "set": options.set,
             "build": os.path.basename(os.path.realpath(os.environ["BERTH_BUILD"])),
             "torch": torch.__version__, "safetensors": version_of("safetensors"),
             "fio": raw.fio_version(), "machine": machine.facts(folder),
             "others_before": others_use(options)}
    facts = whole["machine"]
    print(f"{facts['processor']}, {facts['processors']} processors, {facts['file_system']} on "
          f"{facts['device']}, Linux {facts['kernel']}; PyTorch {whole['torch']}, safetensors "
          f"{whole['safetensors'] or 'none'}, {whole['fio'] or 'no fio'}; Berth's {whole['build']} build")
    if whole["build"] != "release":
        note("this is not a release build: the figures mean nothing")
    if whole["others_before"] > OTHERS:
        note(f"others use {whole['others_before']:.1f} of the processors: the figures are noisy")
    return whole


def berth_bench(folder, *words, enter=None):
    """The report of one `berth bench` in a process of its own, which calls enter() first."""
    command = [f"{os.environ['BERTH_BUILD']}/berth", "bench", *words, "--json", "--quiet"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, preexec_fn=enter)
    if done.returncode:
        raise OSError(f"{' '.join(command)} ended with {done.returncode}")
    return json.loads(done.stdout)


def run(options, measure):
    """Calls measure(folder) with a temporary folder, and keeps the report."""
    os.environ.setdefault("BERTH_BUILD", os.path.join(os.path.dirname(__file__), "../../build/release"))
    os.environ["BERTH_BUILD"] = os.path.realpath(os.environ["BERTH_BUILD"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that folders are removed
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    with tempfile.TemporaryDirectory(prefix="berth-bench-", dir=options.folder) as folder:
        whole = measure(os.path.realpath(folder))
    whole["others_after"] = others_use(options)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(whole, file, indent=1)


def start(name, main):
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        # What the machine or Berth refuses is one line; anything else is a bug of this tool.
        kind = type(error)
        if not isinstance(error, OSError) and kind.__name__ != "BerthError" and \
                kind.__module__ != "berth._errors":
            raise
        note(f"tools/bench/{name}: {error}")
        sys.exit(2)
