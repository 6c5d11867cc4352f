# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: the same tests in 32 bits, and on a big-endian machine under an emulator.
# Debian has no Criterion for the latter: tests/support/criterion/ stands in for it on both.

# foreign_needs MACHINE PACKAGE...: the compiler and the libraries.
foreign_needs() {
    local machine=$1
    shift
    need_packages "$@" && need_foreign "$machine" "${foreign_packages[@]}"
}

# The sources of these folders, and these sources, one a line, without their ".c".
foreign_sources() {
    local given
    for given in "$@"; do
        [ -d "$given" ] || printf '%s\n' "${given%.c}"
        [ ! -d "$given" ] || find "$given" -name '*.c' ! -path io/cuda.c | sort | sed 's/[.]c$//'
    done
}

# foreign_build MACHINE ROOMS SUPPORT TESTS COMPILER...: static programs, in $BUILD/MACHINE as here.
# SUPPORT: what of the test library they need. With tools among the rooms the command, too.
foreign_build() {
    local out=$BUILD/$1 rooms support tests objects libraries
    read -ra rooms <<<"$2"
    read -ra support <<<"$3"
    read -ra tests <<<"$4"
    shift 4
    local compile=("$@" -std=c11 -O1 -g -pthread -D_GNU_SOURCE -static -Wl,-w
        -Wall -Wextra -Wconversion -Wshadow -Werror -I. -Itests/support
        -isystem "$out/root/usr/include")
    # In tests numbers are small, and written as 64 bits have them.
    local compile_test=("${compile[@]}" -Wno-conversion -Wno-sign-compare -Wno-format)
    libraries=("$out"/root/usr/lib/*/lib{deflate,z,jansson}.a)
    foreign_sources "${rooms[@]}" "${support[@]}" "${tests[@]}" |
        sed "s|^|$out/|; s|/[^/]*$||" | sort -u | xargs mkdir -p
    foreign_sources "${rooms[@]}" |
        xargs -P "$jobs" -I{} "${compile[@]}" -c {}.c -o "$out/{}.o" || return 1
    foreign_sources "${support[@]}" |
        xargs -P "$jobs" -I{} "${compile_test[@]}" -c {}.c -o "$out/{}.o" || return 1
    rm -f "$out/libsupport.a"
    foreign_sources "${support[@]}" | sed "s|.*|$out/&.o|" | xargs "${1/%gcc/ar}" qcs "$out/libsupport.a"
    mapfile -t objects < <(foreign_sources "${rooms[@]}" | grep -v '^tools/')
    objects=("${objects[@]/#/$out/}")
    objects=("${objects[@]/%/.o}" "${libraries[@]}")
    foreign_sources "${tests[@]}" |
        xargs -P "$jobs" -I{} "${compile_test[@]}" \
            {}.c "$out/libsupport.a" "${objects[@]}" -o "$out/{}" || return 1
    [ ! -d "$out/tools" ] || "${compile[@]}" "$out"/tools/*.o "${objects[@]}" -o "$out/berth"
}

# foreign_tests MACHINE TESTS [RUNNER...]
foreign_tests() {
    local machine=$1 tests source
    read -ra tests <<<"$2"
    shift 2
    for source in $(foreign_sources "${tests[@]}"); do
        criterion "$machine ${source#tests/}" "$@" "$BUILD/$machine/$source"
    done
}

# format/ alone must hold in 32 bits; Berth as a whole wants 64. Without SSE constants in tests are
# not the doubles that they are elsewhere.
portable_i386() {
    local tests="tests/config tests/format" support
    support=$(echo tests/support/*.c tests/support/{format,criterion})
    may "i386 compiler, libraries" foreign_needs i386 "${i386_packages[@]}" || return
    one "build i386" foreign_build i386 "config format" "$support" "$tests" gcc -m32 \
        -msse2 -mfpmath=sse -idirafter "/usr/include/$(gcc -print-multiarch)" || return
    foreign_tests i386 "$tests"
}

# What tells byte orders apart: all of format/, and of what reads and saves what needs no sums of
# bytes in this order, no direct I/O, which the emulator has not, and no minutes.
s390x_tests() {
    local source
    for source in tests/config/*.c tests/format/*.c tests/api/*.c \
        tests/load/{byteorder,storages,legacy,prefetch,rows,sums,selection,requests,slice,load_into}.c \
        tests/save/{blocks,commit,device,readback}.c; do
        [ "$source" = tests/format/pickle_bombs.c ] && [ "$BERTH_LONG" = 0 ] ||
            printf '%s\n' "$source"
    done
}

portable_s390x() {
    local tests
    tests=$(s390x_tests | tr '\n' ' ')
    may "s390x compiler, libraries, emulator" foreign_needs s390x "${s390x_packages[@]}" || return
    one "build s390x" foreign_build s390x "config format io save load tests/simulated tools" \
        tests/support "$tests" s390x-linux-gnu-gcc || return
    foreign_tests s390x "$tests" qemu-s390x
    one "build debug for s390x" build debug "$BUILD" command || return
    script "s390x files" tests/support/same_files.py "$BUILD/debug/berth" qemu-s390x \
        "$BUILD/s390x/berth"
}
