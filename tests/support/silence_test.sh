#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# tools/try, tools/deb and tools/wheel on a machine where each step that may take long does: it goes on when the tool
# has said something meanwhile. Nothing is built or installed. Ends with "N passed, N failed".
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d) && mkdir "$folder/bin" || exit 2
trap 'rm -rf "$folder"' EXIT
export BUILD=$folder/build STUBS=$folder/bin SAID=$folder/said STEPS=$folder/steps PATH=$folder/bin:$PATH
unset BERTH_PYTHON CUDA_HOME CUDA_PATH CI
good=0
bad=0

# stub NAME: this program is what stands on standard input.
stub() {
    { echo '#!/bin/bash'; cat; } >"$STUBS/$1"
    chmod +x "$STUBS/$1"
}

stub sleep <<<'exec /bin/sleep 0.1' # between two lines of a tool
stub slow <<'END'
n=$(wc -c <"$SAID")
for ((i = 0; i < 400; i++)); do
    [ "$(wc -c <"$SAID")" = "$n" ] || { echo "$*" >>"$STEPS"; exit; }
    /bin/sleep 0.05
done
echo "silent in $*" >>"$STEPS"
END
stub id <<<'echo 0'
stub dpkg-query <<<'exit 1'
stub apt-get <<<'slow apt'
stub lintian <<<'slow lintian'
stub abi3audit <<<'slow abi3audit'
stub dpkg-buildpackage <<<'slow dpkg-buildpackage; touch ../berth.{deb,dsc,tar.xz,changes,buildinfo}'
stub scons <<<'slow scons; mkdir -p "$BUILD/release/python"; cp /bin/true "$BUILD/release/berth"'
stub cc <<<'cp /bin/true example'
stub auditwheel <<<'slow auditwheel; cp "$7" "$6/berth_checkpoint-0-cp311-abi3-manylinux_2_28_$(uname -m).whl"'
stub python3 <<'END'
packages=${0%/bin/python}/lib/python3/site-packages
case "$1 $2 ${3:-}" in
"-c import torch "*) slow torch ;;
"-m venv "*)
    slow venv
    mkdir -p "$3/bin"
    ln -s "$STUBS"/{auditwheel,abi3audit} "$3/bin"
    ln -s "$STUBS/python3" "$3/bin/python"
    ;;
"-m pip install")
    slow pip
    mkdir -p "$packages/nvidia/cuda_runtime/include"
    touch "$packages"/nvidia/cuda_runtime/include/{cuda,cudaTypedefs}.h
    ;;
"-m build "*) slow build && mkdir -p "$7/x" && touch "$7/x/y" && tar -czf "$7/x.tar.gz" -C "$7" x ;;
"-m ziglang cc") slow zig && shift 5 && exec gcc "$@" ;;
"-m pip wheel") slow wheel && mkdir -p "$8/berth" && cd "$8" && touch berth/_{command,native.abi3.so} && zip -qr x.whl berth ;;
esac
END
cp "$STUBS/python3" "$STUBS/python3.11"

# check TOOL STEP...: it takes these steps, and others.
check() {
    local tool=$1 code each
    shift
    rm -rf "$BUILD"
    : >"$STEPS"
    "$root/tools/$tool" >"$folder/out" 2>"$SAID" </dev/null
    code=$?
    for each in "$@"; do
        if [ $code = 0 ] && grep -qx "$each" "$STEPS" && ! grep -qx "silent in $each" "$STEPS"; then
            good=$((good + 1))
        else
            bad=$((bad + 1))
            printf 'tools/%s, exit code %d: not said while it is at: %s\n' "$tool" $code "$each"
        fi
    done
    [ $bad = 0 ] || cat "$STEPS" "$SAID" "$folder/out"
}

check try apt scons torch
check deb apt dpkg-buildpackage lintian
check wheel apt venv pip zig build wheel auditwheel abi3audit

printf '%d passed, %d failed\n' "$good" "$bad"
[ "$bad" -eq 0 ]
