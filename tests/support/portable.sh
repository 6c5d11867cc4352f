# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: the same tests in 32 bits, on a big-endian and on a 64-bit Arm machine under
# an emulator, and with another C library. Debian has Criterion for none of them:
# tests/support/criterion/ stands in for it.

# foreign_needs MACHINE PACKAGE...: the compiler and the libraries. MACHINE is Debian's name, or musl.
foreign_needs() {
    local machine=$1
    shift
    need_packages "$@" && need_foreign "$machine" "${foreign_packages[@]}"
}

# A build has jansson or not (format/json/). Debian has none for musl.
foreign_left_out='format/json/without_json[.]c'

# The sources of these folders, and these sources, one a line, without their ".c".
foreign_sources() {
    local given
    for given in "$@"; do
        [ -d "$given" ] || printf '%s\n' "${given%.c}"
        [ ! -d "$given" ] || find "$given" -name '*.c' ! -path io/device/cuda.c | grep -v "$foreign_left_out" | sort | sed 's/[.]c$//'
    done
}

# The archiver beside a cross compiler, or this machine's.
foreign_archiver() {
    case $1 in *-gnu-gcc) say "${1/%gcc/ar}" ;; *) say ar ;; esac
}

# foreign_build MACHINE ROOMS SUPPORT TESTS COMPILER...: static programs, in $BUILD/MACHINE as here.
# SUPPORT: what of the test library they need. With tools among the rooms the command, too.
foreign_build() {
    local out=$BUILD/$1 rooms support tests objects libraries folders folder each
    read -ra rooms <<<"$2"
    read -ra support <<<"$3"
    read -ra tests <<<"$4"
    shift 4
    local compile=("$1" -std=c11 -O1 -g -pthread -D_GNU_SOURCE -static -Wl,-w
        -Wall -Wextra -Wconversion -Wshadow -Werror -I. -Itests/support
        -isystem "$out/root/usr/include" "${@:2}")
    # In tests numbers are small, and written as 64 bits have them.
    local compile_test=("${compile[@]}" -Wno-conversion -Wno-sign-compare -Wno-format)
    libraries=("$out"/root/usr/lib/*/lib{deflate,z,jansson}.a)
    mapfile -t folders < <(foreign_sources "${tests[@]}" | sed 's|/[^/]*$||' | uniq)
    foreign_sources "${rooms[@]}" "${support[@]}" "${tests[@]}" |
        sed "s|^|$out/|; s|/[^/]*$||" | sort -u | xargs mkdir -p
    foreign_sources "${rooms[@]}" |
        xargs -P "$jobs" -I{} "${compile[@]}" -c {}.c -o "$out/{}.o" || return 1
    foreign_sources "${support[@]}" "${tests[@]}" |
        xargs -P "$jobs" -I{} "${compile_test[@]}" -c {}.c -o "$out/{}.o" || return 1
    rm -f "$out/libsupport.a"
    foreign_sources "${support[@]}" | sed "s|.*|$out/&.o|" | xargs "$(foreign_archiver "$1")" qcs "$out/libsupport.a"
    mapfile -t objects < <(foreign_sources "${rooms[@]}" | grep -v '^tools/')
    objects=("${objects[@]/#/$out/}")
    objects=("${objects[@]/%/.o}" "${libraries[@]}")
    for folder in "${folders[@]}"; do
        mapfile -t each < <(foreign_sources "${tests[@]}" | sed -n "s|^$folder/.*|$out/&.o|p")
        "${compile[@]}" "${each[@]}" "$out/libsupport.a" "${objects[@]}" -o "$out/$folder/all" || return 1
    done
    [ ! -d "$out/tools" ] || "${compile[@]}" "$out"/tools/*/*.o "${objects[@]}" -o "$out/berth"
}

# foreign_tests MACHINE TESTS [RUNNER...]: one process for all suites, as the stand-in for Criterion has no filters.
foreign_tests() {
    local machine=$1 tests folder share=1
    read -ra tests <<<"$2"
    shift 2
    for folder in $(foreign_sources "${tests[@]}" | sed 's|/[^/]*$||' | uniq); do
        criterion "$machine ${folder#tests/}" "$@" "$BUILD/$machine/$folder/all"
    done
}

# format/ alone must hold in 32 bits; Berth as a whole wants 64. Without SSE constants in tests are
# not the doubles that they are elsewhere.
portable_i386() {
    local tests="tests/config tests/format" support
    support=$(echo tests/support/*.c tests/support/{format,criterion})
    may "i386 compiler, libraries" foreign_needs i386 "${i386_packages[@]}" || return
    one "build i386" foreign_build i386 "base config format" "$support" "$tests" gcc -m32 \
        -msse2 -mfpmath=sse -idirafter "/usr/include/$(gcc -print-multiarch)" || return
    foreign_tests i386 "$tests"
}

# All of format/, and of what reads and saves what tells byte orders apart and needs no sums of bytes
# in this order, no direct I/O, which the emulator has not, and no minutes.
foreign_rooms="base config format io save load tests/simulated"
foreign_curl="adapters/curl/names.c adapters/curl/without.c" # there are no headers of libcurl's
foreign_test_list() {
    local source
    for source in tests/config/*.c tests/format/*.c tests/api/*.c \
        tests/load/{byteorder,storages,legacy,prefetch,rows,sums,selection,requests,slice,load_into}.c \
        tests/save/{blocks,commit,device,readback}.c; do
        [ "$source" = tests/format/pickle_bombs.c ] && [ "$BERTH_LONG" = 0 ] ||
            printf '%s ' "$source"
    done
}

# portable_emulated MACHINE COMPILER EMULATOR PACKAGE...: library and command.
portable_emulated() {
    local machine=$1 compiler=$2 emulator=$3 tests
    shift 3
    tests=$(foreign_test_list)
    may "$machine compiler, libraries, emulator" foreign_needs "$machine" "$@" || return
    one "build $machine" foreign_build "$machine" "$foreign_rooms tools $foreign_curl" \
        tests/support "$tests" "$compiler" || return
    foreign_tests "$machine" "$tests" "$emulator"
    script "$machine files" tests/support/same_files.py "$BUILD/debug/berth" "$emulator" \
        "$BUILD/$machine/berth"
}

portable_s390x() {
    portable_emulated s390x s390x-linux-gnu-gcc qemu-s390x "${s390x_packages[@]}"
}

portable_arm64() {
    portable_emulated arm64 aarch64-linux-gnu-gcc qemu-aarch64 "${arm64_packages[@]}"
}

# The library. The command needs argp, which glibc has; musl has other types for two system calls.
portable_musl() {
    local tests foreign_left_out='format/json/\(json_parse\|.*_read\|.*_write\)[.]c'
    tests=$(foreign_test_list)
    may "musl, libraries" foreign_needs musl "${musl_packages[@]}" || return
    one "build musl" foreign_build musl "$foreign_rooms" tests/support "$tests" musl-gcc \
        -Wno-conversion -idirafter /usr/include \
        -idirafter "/usr/include/$(gcc -print-multiarch)" || return
    foreign_tests musl "$tests"
}
