# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: what analyzers find in the library, one function an analyzer. Each fails on
# any finding; what is excused says why where it stands (.clang-tidy for whole checks).

# analyze FUNCTION: calls it with each source and what the compiler is told, several at a time.
analyze() {
    local folder source flags cuda
    cuda=$(find_cuda_headers)
    export -f "${1?}"
    for folder in config format io load save; do
        for source in "$folder"/*.c; do
            [ -n "$cuda" ] || [ "$source" != io/cuda.c ] || continue
            flags="-std=c11 -D_GNU_SOURCE -pthread -I.${cuda:+ -DBERTH_HAS_CUDA -isystem $cuda}"
            case $source in
            config/error.c | format/value.c) ;; # these define what contracts.h tells of
            *) flags+=" -include config/error.h -include tests/support/contracts.h" ;;
            esac
            printf '%s\0%s\0' "$source" "$flags"
        done
    done | xargs -0 -n 2 -P "$jobs" bash -c "$1"' "$0" $1'
}

# One source at a time: of more, clang-tidy 14 takes every va_list for one that never began.
tidy_source() {
    clang-tidy-14 --quiet "$1" -- "${@:2}" 2>/dev/null
}

analysis_tidy() {
    analyze tidy_source
}

gcc_source() {
    gcc -fanalyzer -Werror -O2 "${@:2}" -c "$1" -o /dev/null
}

analysis_gcc() {
    analyze gcc_source
}

analysis_cppcheck() {
    cppcheck --quiet --std=c11 --library=posix --library=gnu -D_GNU_SOURCE -DBERTH_HAS_CUDA -I. \
        --enable=warning,performance,portability --inline-suppr --error-exitcode=1 -j "$jobs" \
        config format io load save tools
}
