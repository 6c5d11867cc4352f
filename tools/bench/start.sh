# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/bench/save, load and device with the name of a Python file here and the words of the
# command line: builds the release variant, finds or installs PyTorch, and starts the file. With
# BERTH_BUILD (the folder of a built variant) and BERTH_PYTHON nothing is built or installed.
set -u

tool=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
here=$PWD
export PYTHONDONTWRITEBYTECODE=1
file=$1
shift
for word in "$@"; do
    case $word in -h | --help) exec python3 "$tool/$file" --help ;; esac
done
if [ -z "${BERTH_BUILD:-}" ] || [ -z "${BERTH_PYTHON:-}" ]; then
    # shellcheck source=tools/setup.sh
    . "$tool/../setup.sh"
    if [ -z "${BERTH_BUILD:-}" ]; then
        check_platform && need_packages "${build_packages[@]}" && build release >&2 || exit 2
        BERTH_BUILD=$BUILD/release
    fi
    need_torch >&2 || exit 2
    cd "$here" || exit 2
fi
export BERTH_BUILD BERTH_PYTHON
exec "$BERTH_PYTHON" "$tool/$file" "$@"
