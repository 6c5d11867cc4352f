# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2154
# Sourced by run if BERTH_LONG is 1: tools/deb in a Debian 12 that has nothing else, and what it builds in
# another one, by apt. Needs root, and takes packages from the mirror that this machine uses.

builder=$there/builder
user=$there/user
all=(berth libberth0 libberth-dev)

# make_bookworm FOLDER
make_bookworm() {
    local sources=() file
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
        [ ! -s "$file" ] || sources+=("$file")
    done
    mmdebstrap --variant=minbase bookworm "$1" "${sources[@]}"
}

# in_chroot FOLDER COMMAND...: in its folder /source, as root, with nothing of this machine's environment.
in_chroot() {
    local folder=$1
    shift
    unshare --mount --pid --fork "--mount-proc=$folder/proc" chroot "$folder" \
        env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 \
        sh -c 'cd /source && exec "$@"' sh "$@"
}

# make_checkout FOLDER: with all files but builds, and no git there.
make_checkout() {
    make_bookworm "$1" && mkdir "$1/source" &&
        tar --exclude=.git --exclude=./build -cf - . | tar --no-same-owner -xf - -C "$1/source"
}

build_first() {
    in_chroot "$builder" tools/deb /first && in_chroot "$builder" tools/deb /second &&
        for file in "$builder"/first/*.deb; do # built again, a package is the same
            cmp "$file" "$builder/second/$(basename "$file")" || return 1
        done
}

build_later_there() {
    sed -i '1s/)/+later)/' "$builder/source/debian/changelog" && in_chroot "$builder" tools/deb /later
}

make_user() {
    make_bookworm "$user" && mkdir "$user/source" && cp -r debian examples "$user/source" &&
        mv "$builder/first" "$builder/later" "$user" && in_chroot "$user" apt-get update -qq
}

# apt_there PACKAGE...
apt_there() {
    in_chroot "$user" apt-get install -y -qq --no-install-recommends --allow-downgrades "$@"
}

# put_there FOLDER NAME...: packages that were built
put_there() {
    local name files=()
    for name in "${@:2}"; do
        files+=("$user/$1/$name"_*.deb)
    done
    apt_there "${files[@]#"$user"}"
}

files_there() {
    find "$user" \( -path "$user/var/lib/dpkg" -o -path "$user/var/lib/apt" -o -path "$user/var/cache" -o \
        -path "$user/var/log" -o -path "$user/tmp" -o -path "$user/proc" \) -prune -o -print | sort
}

# purge_there PACKAGE...: and all that came with them; the files are those of $there/before.
purge_there() {
    in_chroot "$user" apt-get purge -y -qq --autoremove "$@" && files_there | diff "$there/before" -
}

command_alone() {
    put_there first berth && in_chroot "$user" debian/tests/command
}

# What debian/tests/control says that the test needs, and Berth's own packages.
programs_there() {
    local needs
    read -ra needs < <(sed -n '/^Tests: library/{n;s/^Depends: //;s/libberth-dev//;s/,//g;p}' debian/tests/control)
    # shellcheck disable=SC2016
    apt_there "${needs[@]}" && files_there >"$there/before" && put_there first "${all[@]}" &&
        in_chroot "$user" debian/tests/library &&
        in_chroot "$user" sh -c 'gcc examples/infer.c -o /tmp/infer $(pkg-config --cflags --libs berth)'
}


# goes_to FOLDER: a program built with the first version works with these packages, and so does the command.
goes_to() {
    put_there "$1" "${all[@]}" && in_chroot "$user" /tmp/infer examples/mlp.pt && in_chroot "$user" debian/tests/command &&
        in_chroot "$user" dpkg-query -W berth libberth0 libberth-dev | awk '{print $2}' | sort -u >"$there/versions" &&
        dpkg-deb -f "$user/$1"/berth_*.deb Version | diff - "$there/versions"
}

in_bookworm() {
    [ "$(id -u)" = 0 ] || { echo "skipped: only root can make a clean bookworm"; return; }
    try "mmdebstrap" bash -c 'BUILD=$0 && . tools/setup.sh && need_packages mmdebstrap' "$there/build" || return
    try "bookworm: a clean one" make_checkout "$builder" || return
    try "bookworm: tools/deb, twice the same" build_first &&
        try "bookworm: a later version" build_later_there &&
        try "bookworm: another clean one" make_user || return
    files_there >"$there/before"
    try "bookworm: the command, alone" command_alone
    try "bookworm: purge, nothing is left" purge_there berth
    try "bookworm: programs" programs_there
    try "bookworm: upgrade" goes_to later
    try "bookworm: downgrade" goes_to first
    try "bookworm: purge, nothing is left of the library" purge_there "${all[@]}"
}
