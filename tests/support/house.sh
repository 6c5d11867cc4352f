# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: what must hold of the house as a whole, one function a promise. Each runs
# in the repository's root, prints what is wrong and then fails. What looks at a build needs the debug variant.

sources() {
    find berth.h berth.hpp berth base config format io save load tools examples adapters tests \
        \( -name '*.[ch]' -o -name '*.[ch]pp' \) 2>/dev/null | sort
}

house_formatted() {
    sources | xargs clang-format-14 --dry-run -Werror
}

# Each label of the manual begins a line: the formatter joins lines when a name in them grows.
house_labels() {
    ! grep -nE '^ \*.*[.,;:] (Parameters|Shapes|Returns|Ownership|Lifetime|Errors|Threads|Source): ' \
        berth.h berth.hpp berth/*.h
}

house_includes() {
    python3 tests/support/check_includes.py
}

house_graph() {
    python3 tests/support/check_graph.py "$BUILD/debug"
}

house_sizes() {
    python3 tests/support/check_sizes.py
}

house_promises() {
    python3 tests/support/check_promises.py
}

house_links() {
    python3 tests/support/check_links.py
}

# No program, object or library of a build is committed.
house_tracked() {
    git rev-parse -q --git-dir > /dev/null 2>&1 || return 0
    ! git ls-files -z | LC_ALL=C xargs -0 grep -lsaP '\A(\x7fELF|!<arch>)'
}

# Each part of the tests has a row of the table in tests/README.md, and each row a part.
house_parts() {
    diff <(declare -F | sed -n 's/^declare -f part_//p' | sort) \
        <(sed -n '/<!-- parts -->/,/<!-- end of parts -->/s/^| `\([^`]*\)`.*/\1/p' tests/README.md | tr - _ | sort) ||
        { echo "< parts of tools/check   > in the table of tests/README.md"; return 1; }
}

# house_header [COMPILER]...: the public headers alone, in the languages and compilers it promises.
house_header() {
    local strict="-Wall -Wextra -Wconversion -Wcast-qual -Wshadow -pedantic -Werror -fsyntax-only"
    local include compiler
    include=$(printf '#include <%s>\n' berth.h berth/*.h)
    [ $# -gt 0 ] || set -- gcc
    for compiler in "$@"; do
        # shellcheck disable=SC2086
        printf '%s\nint unused;\n' "$include" | $compiler $strict -std=c99 -I. -xc - || return 1
        # shellcheck disable=SC2086
        printf '%s\n' "$include" | $compiler $strict -std=c++17 -I. -xc++ - || return 1
        # shellcheck disable=SC2086
        printf '%s\n' "#include <berth.hpp>" | $compiler $strict -std=c++17 -I. -xc++ - || return 1
    done
}

# declared_functions HEADER...: the names of the public functions that these declare, and what they include.
declared_functions() {
    gcc -E -P -I. -x c "$@" | tr '\n' ' ' | tr ';' '\n' |
        grep 'visibility("default")' | grep -oE 'berth_[a-z0-9_]+ ?\(' | tr -d ' (' | sort -u
}

# The shared library shows every function that the header declares, in its version's node, and the
# static library's only global names are the same.
house_exports() {
    local declared node shown
    declared=$(declared_functions berth.h berth/*.h)
    [ -n "$declared" ] || { echo "no function found in the public headers"; return 1; }
    node=BERTH_$(sed -nE 's/.*BERTH_VERSION_STRING "([0-9]+\.[0-9]+).*/\1/p' berth.h)
    shown=$(nm -D --defined-only "$BUILD/debug/libberth.so" | awk '{print $3}' | sort)
    diff <({ echo "$node"; sed "s/\$/@@$node/" <<<"$declared"; } | sort) <(echo "$shown") ||
        { echo "< declared in the public headers   > exported by libberth.so"; return 1; }
    shown=$(nm -g --defined-only "$BUILD/debug/libberth.a" | awk 'NF == 3 {print $3}' | sort)
    diff <(echo "$declared") <(echo "$shown") ||
        { echo "< declared in the public headers   > global in libberth.a"; return 1; }
}

# debian/ follows berth.h: its version, and the symbols of the library, each with the version that
# brought it (tools/deb compares them with the library that it builds).
house_debian() {
    local version minor
    version=$(sed -nE 's/.*BERTH_VERSION_STRING "(.+)"/\1/p' berth.h)
    minor=${version%.*}
    head -n 1 debian/changelog | grep -F "berth ($version" ||
        { echo "debian/changelog does not begin with $version, as berth.h does"; return 1; }
    head -n 1 debian/libberth0.symbols | grep -F "(<< ${minor%.*}.$((${minor#*.} + 1))~)" ||
        { echo "debian/libberth0.symbols promises more than $minor, which is the library's symbol version"; return 1; }
    diff <(nm -D --defined-only "$BUILD/debug/libberth.so" | awk '{print $3}' | sed 's/@@/@/; s/^BERTH.*/&@&/' | LC_ALL=C sort) \
        <(sed -nE 's/^ ([^ ]+) .*/\1/p' debian/libberth0.symbols | LC_ALL=C sort) ||
        { echo "< exported by libberth.so   > in debian/libberth0.symbols"; return 1; }
}

# Installed somewhere else, a program finds it through pkg-config, static and shared, and runs. It has
# no simulated devices: those are of tests and the command.
house_install() {
    local there program flags said
    there=$(mktemp -d) || return 1
    program='#include <berth/device.h>
#include <stdio.h>
int main(void)
{
    size_t address;
    berth_error error;
    if (berth_device_memory_new("simulated:0", 1, &address, &error) != BERTH_E_ARGUMENT)
        return 1;
    return printf("%s %s\n", berth_version(), error.message) < 0;
}'
    build release "$BUILD" install "DESTDIR=$there" PREFIX=/opt/berth || return 1
    for file in lib/libberth.a lib/libberth.so lib/libberth.so.0 include/berth.h include/berth.hpp include/berth/{config,more,joint,rows,prefetch,device}.h \
        lib/libberth_curl.a include/berth_curl.h \
        bin/berth share/man/man1/berth.1 share/bash-completion/completions/berth \
        share/zsh/site-functions/_berth share/fish/vendor_completions.d/berth.fish; do
        [ -e "$there/opt/berth/$file" ] || { echo "not installed: $file"; return 1; }
    done
    export PKG_CONFIG_PATH=$there/opt/berth/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$there
    printf '%s\n' "$program" >"$there/program.c"
    for flags in "" "--static"; do
        # shellcheck disable=SC2046,SC2086
        gcc ${flags:+-static} "$there/program.c" -o "$there/program" \
            $(pkg-config $flags --cflags --libs berth) || return 1
        said=$(LD_LIBRARY_PATH=$there/opt/berth/lib "$there/program") || return 1
        [ "$said" = "$(pkg-config --modversion berth) simulated:0: not the name of a device; \
devices are cuda:0, cuda:1 and so on" ] || { echo "the program prints: $said"; return 1; }
    done
    "$there/opt/berth/bin/berth" --version || return 1
    rm -rf "$there"
}

# scons takes each of these from the command line, else from the environment: in real commands, of one
# small library, and in those of a whole build and an install, which are only printed.
house_variables() {
    local there own from given other=() words name i
    there=$(mktemp -d) && own=$there/own || return 1
    mkdir "$own" && ln -s "$(command -v gcc)" "$own/gcc" && ln -s "$(command -v g++)" "$own/cxx" || return 1
    # shellcheck disable=SC2016  # the linker's $ORIGIN
    given=("CC=$own/gcc" "CXX=$own/cxx" 'CFLAGS=-DOF_C="two words" -O1' CXXFLAGS=-DOF_CXX CPPFLAGS=-DOF_CPP
        'LDFLAGS=-Wl,-rpath,$ORIGIN/../own' PREFIX=own/prefix LIBDIR=lib/own "DESTDIR=$there/d e s t")
    local commands=(
        CC "^$own/gcc .*config/layers[.]c$"
        CXX "^$own/cxx .*examples/cpp[.]cpp$"
        CFLAGS ' -O0 .* "-DOF_C=two words" -O1 -fPIC config/layers[.]c$'
        CXXFLAGS ' -O0 .* -DOF_CXX examples/cpp[.]cpp$'
        CPPFLAGS ' -I. -DOF_CPP .*config/layers[.]c$'
        LDFLAGS ' [^ ]*/libberth[.]so[.][0-9.]+ .*-Wl,-rpath,[$]ORIGIN/[.][.]/own '
        PREFIX "$PWD/own/prefix/include/berth[.]h\"$"
        LIBDIR "$PWD/own/prefix/lib/own/pkgconfig/berth[.]pc\"$"
        DESTDIR " as \"$there/d e s t/[^ ]*/bin/berth\"$"
    )
    for name in "${given[@]%%=*}"; do
        other+=("$name=/nonexistent")
    done
    for from in command environment; do
        [ $from = command ] && words=(env "${other[@]}" scons "${given[@]}") || words=(env "${given[@]}" scons)
        words+=(-Q VARIANT=debug "BUILD=$there/$from" CUDA_HOME=none PYTHON=none)
        "${words[@]}" "$there/$from/debug/tests/hostile/heap.so" &&
            "${words[@]}" -n install examples >"$there/printed" || return 1
        readelf -d "$there/$from/debug/tests/hostile/heap.so" | grep -F "[\$ORIGIN/../own]" ||
            { echo "LDFLAGS of the $from: no such runpath"; return 1; }
        for ((i = 0; i < ${#commands[@]}; i += 2)); do
            grep -qE -- "${commands[i + 1]}" "$there/printed" ||
                { echo "${commands[i]} of the $from: no line ${commands[i + 1]} in $there/printed"; return 1; }
        done
        ! grep -F /nonexistent "$there/printed" || return 1
    done
    rm -rf "$there"
}

# Without jansson: the build and the errors say what is lost, and a program is linked without it.
house_without_json() {
    local there out=$BUILD/without-json
    there=$(mktemp -d) || return 1
    scons -Q -s -j"$jobs" VARIANT=debug "BUILD=$out" JANSSON=none install "DESTDIR=$there" PREFIX=/opt/berth \
        >"$there/said" || { cat "$there/said"; return 1; }
    grep -q '^JANSSON=none: this library refuses safetensors and .pt2 files; the command and the package' \
        "$there/said" || return 1
    [ ! -e "$there/opt/berth/bin" ] && [ ! -e "$there/opt/berth/share/man" ] || return 1
    ! grep -r jansson "$there/opt/berth/lib"/{pkgconfig,cmake} || return 1
    printf '%s\n' '#include <berth.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    berth_checkpoint *file;
    berth_error error;
    for (int i = 1; i < argc; i++) {
        int status = berth_open(argv[i], NULL, &file, &error);
        printf("%s\n", status < 0 ? error.message : "opened");
        if (status == 0)
            berth_close(file);
    }
    return 0;
}' >"$there/program.c"
    printf '\x02\0\0\0\0\0\0\0{}' >"$there/none.safetensors"
    export PKG_CONFIG_PATH=$there/opt/berth/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$there
    # shellcheck disable=SC2046
    gcc "$there/program.c" -o "$there/program" $(pkg-config --cflags --libs berth) || return 1
    LD_LIBRARY_PATH=$there/opt/berth/lib "$there/program" examples/mlp.pt "$there/none.safetensors" \
        >"$there/said" || return 1
    diff - "$there/said" <<END || return 1
opened
$there/none.safetensors: a safetensors file: this build of Berth was made without jansson, which reads and writes its header
END
    readelf -d "$there/opt/berth/lib/libberth.so" >"$there/said" && grep libdeflate "$there/said" || return 1
    ! grep jansson "$there/said" || return 1
    rm -rf "$there"
}

# The core alone: the build says what is lost, exactly the functions of its headers are there, and programs that
# need no more run. (tests/core: what such a library refuses.)
house_without_wings() {
    local there out=$BUILD/without-wings headers="berth.h berth/config.h berth/more.h" declared each
    there=$(mktemp -d) || return 1
    scons -Q -s -j"$jobs" VARIANT=debug "BUILD=$out" WINGS=none install "DESTDIR=$there" PREFIX=/opt/berth \
        >"$there/said" || { cat "$there/said"; return 1; }
    grep -q '^WINGS=none: this library has no joint saves, rows, prefetches, devices and traces; the command' \
        "$there/said" || return 1
    [ ! -e "$there/opt/berth/bin" ] || return 1
    # shellcheck disable=SC2086
    declared=$(declared_functions $headers)
    diff <(echo "$declared") <(nm -D --defined-only "$there/opt/berth/lib/libberth.so" | awk '$2 == "T" {print $3}' |
        sed 's/@.*//' | sort) || { echo "< declared in $headers   > exported by libberth.so"; return 1; }
    for each in infer edit stream; do
        gcc -I"$there/opt/berth/include" "examples/$each.c" "$there/opt/berth/lib/libberth.a" \
            -ldeflate -lz -ljansson -ldl -pthread -o "$there/$each" || return 1
    done
    "$there/infer" examples/mlp.pt && "$there/edit" examples/mlp.pt "$there/edited.pt" &&
        (cd "$there" && ./stream) || return 1
    rm -rf "$there"
}

# As before, through CMake's find_package, and with libraries where Debian has them; another minor version
# is not found.
house_cmake() {
    local there target
    command -v cmake >/dev/null || { echo "no cmake: apt-get install cmake"; return 1; }
    there=$(mktemp -d) || return 1
    build release "$BUILD" install "DESTDIR=$there" PREFIX=/opt/berth \
        "LIBDIR=lib/$(gcc -print-multiarch)" || return 1
    printf '%s\n' '#include <berth.h>
int main(void) { return *berth_version() == 0; }' >"$there/program.c"
    for target in berth static; do
        cat >"$there/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.10)
project(program C)
find_package(berth 0.1 QUIET)
if(berth_FOUND)
  message(FATAL_ERROR "0.1 was found")
endif()
find_package(berth 0.2 REQUIRED)
add_executable(program program.c)
target_link_libraries(program berth::$target)
END
        cmake -S "$there" -B "$there/$target" "-DCMAKE_PREFIX_PATH=$there/opt/berth" || return 1
        cmake --build "$there/$target" && "$there/$target/program" || return 1
    done
    rm -rf "$there"
}

# The README's program and those of examples/, in the languages that they promise, against the
# installed headers. Each run ends with 0 only if it got what it should.
house_examples() {
    local there root=$PWD strict="-g -Wall -Wextra -Wpedantic -Werror" library sanitize standard each
    there=$(mktemp -d) || return 1
    build release "$BUILD" install "DESTDIR=$there" PREFIX=/opt/berth || return 1
    build asan "$BUILD" lib || return 1
    # shellcheck disable=SC2016
    sed -n '/^```c$/,/^```$/{/^```/d;p}' README.md >"$there/readme.c"
    for library in release/libberth.a asan/tests/libinside.a; do
        sanitize=
        [ $library = release/libberth.a ] ||
            sanitize="-fsanitize=address,undefined -fno-sanitize-recover=all"
        for standard in c99 c11 c17; do
            for each in examples/*.c "$there/readme.c"; do
                [ "$each" != examples/mpi.c ] || continue # tests/mpi builds and runs it
                # shellcheck disable=SC2086
                gcc -std=$standard $strict $sanitize "-I$there/opt/berth/include" "$each" \
                    "$BUILD/$library" -ldeflate -lz -ljansson -ldl -pthread \
                    -o "$there/$(basename "$each" .c)" || return 1
            done
        done
        # shellcheck disable=SC2086
        g++ -std=c++17 $strict $sanitize "-I$there/opt/berth/include" examples/cpp.cpp \
            "$BUILD/$library" -ldeflate -lz -ljansson -ldl -pthread -o "$there/cpp" || return 1
        (cd "$there" && rm -f t.pt && ./readme && "$BUILD/release/berth" verify model.pt &&
            ./infer "$root/examples/mlp.pt" && ./train t.pt 95 &&
            ./train t.pt 300 && ./edit t.pt e.pt && "$BUILD/release/berth" verify e.pt &&
            ! "$BUILD/release/berth" ls e.pt | grep optimizer && ./stream && ./rows rows.pt &&
            ./joint joint.pt && "$BUILD/release/berth" verify joint.pt &&
            ./config --help && ./config --save.durability=file && ./cpp cpp.pt) || return 1
    done
    rm -rf "$there"
}
