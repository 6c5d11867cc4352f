# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: what analyzers find in the library and the command, one function an
# analyzer: of the sources given, or of all. Each fails on any finding; what is excused says why where
# it stands (.clang-tidy for whole checks).

# analyze FUNCTION [SOURCE...]: calls it with each source and what the compiler is told, several at a
# time.
analyze() {
    local function=$1 source flags cuda
    shift
    # shellcheck disable=SC2046
    [ $# -gt 0 ] || set -- $(find base config format io load save tools adapters/curl -name '*.c' | sort)
    cuda=$(find_cuda_headers)
    export -f "${function?}" gcc_excuses gcc_unexcused
    for source in "$@"; do
        [ -n "$cuda" ] || [ "$source" != io/device/cuda.c ] || continue
        flags="-std=c11 -D_GNU_SOURCE -DCURL_DISABLE_DEPRECATION -pthread -I.${cuda:+ -DBERTH_HAS_CUDA -isystem $cuda}"
        case $source in
        base/error.c | base/memory.c | format/values/container_items.c) ;; # these define what contracts.h tells of
        tools/* | */tools/* | adapters/*) ;;                        # these see only berth.h
        *) flags+=" -include base/error.h -include base/memory.h -include tests/support/contracts.h" ;;
        esac
        printf '%s\0%s\0' "$source" "$flags"
    done | xargs -0 -n 2 -P "$jobs" bash -c "$function"' "$0" $1'
}

# One source at a time: of more, clang-tidy 14 takes every va_list for one that never began. It looks
# for .clang-tidy beside the source and above.
tidy_source() {
    clang-tidy-14 --quiet "$1" -- "${@:2}" 2>/dev/null
}

analysis_tidy() {
    analyze tidy_source "$@"
}

# What gcc 12 gets wrong, each looked at: source, function, how often, kind: why it is no defect. One
# that gcc tells no more, or more often, is a failure.
gcc_excuses() {
    cat <<'END'
adapters/curl/answer.c answer_keep_text 1 malloc-leak: kept in kept->bytes, which the caller frees
adapters/curl/answer.c answer_take_bytes 1 malloc-leak: kept in range->bytes, which the block of the tail or head takes
format/names/names.c naming_add_entry 2 malloc-leak: what naming_grow_array() gives is what names->entries held, moved
format/names/names.c naming_append_tensor 1 malloc-leak: what naming_grow_array() gives is what names->tensors held, moved
load/open/contents_read.c contents_read_listed 1 malloc-leak: kept in contents->archive, which bth_contents_free frees
load/open/head_records.c head_find_pickle_record 2 malloc-leak: the same
save/joint/joint_slices.c bth_slice_parts_append 1 malloc-leak: of a copy of a slice, which bth_slice_parts_free_all frees
tools/dcp/dcp_table.c dcp_break_piece 1 malloc-leak: kept in the piece, which dcp_free frees
tools/commands/diff_names.c name_list_add 1 malloc-leak: kept in the list, which name_pairs_free frees
tools/map/map_read.c storage_add_tensor 1 malloc-leak: kept in the storage, which map_free frees
tools/common/shards.c path_beside 1 malloc-leak: kept in the set, which shard_set_free frees
tools/common/shards.c shard_set_make_paths 1 malloc-leak: the same, behind a call
tools/commands/verify.c bad_record_add_tensor 1 malloc-leak: kept in the record, which findings_free frees with its names
END
}

# gcc_unexcused SOURCE: of gcc's output, findings that are not excused, and excuses without a finding.
gcc_unexcused() {
    awk -v from="$1" '
        NR == FNR { if ($1 == from) excused[$2 " [-Wanalyzer-" substr($4, 1, length($4) - 1) "]"] = $3
                    next }
        / In function / { name = $NF; gsub(/[\047:]/, "", name) }
        / warning: / && excused[name " " $NF]-- <= 0 { print }
        END { for (each in excused) if (excused[each] > 0) print from ": no more: " each }
    ' <(gcc_excuses) -
}

# -Wall: indices beyond an array, which -fanalyzer looks for only from gcc 13 on. SIZE_MAX bytes are
# asked for where a product does not fit: base/memory.h.
gcc_source() {
    local told unexcused
    if told=$(LC_ALL=C gcc -fanalyzer -Wall -Wno-alloc-size-larger-than -O2 "${@:2}" -c "$1" \
        -o /dev/null 2>&1) && unexcused=$(gcc_unexcused "$1" <<<"$told") && [ -z "$unexcused" ]; then
        return
    fi
    printf '%s\n' "$told" "$unexcused"
    return 1
}

analysis_gcc() {
    analyze gcc_source "$@"
}

# readdirCalled: readdir is safe where threads do not share a folder's stream; glibc advises against readdir_r.
analysis_cppcheck() {
    [ $# -gt 0 ] || set -- base config format io load save tools adapters/curl
    cppcheck --quiet --std=c11 --library=posix --library=gnu --library=tests/support/cppcheck.cfg \
        -D_GNU_SOURCE -DBERTH_HAS_CUDA -I. --enable=warning,performance,portability \
        --inline-suppr --suppress=readdirCalled --error-exitcode=1 -j "$jobs" "$@"
}

# Sources with a bug, and one without, in a folder: what every analyzer must tell apart.
make_seeds() {
    cat >"$1/nothing.c" <<'END'
#include "base/memory.h"
int berth_seed(size_t n);
int berth_seed(size_t n)
{
    static const int table[2] = {1, 2};
    char *text = bth_allocate(8);
    int sum = 0;

    if (!text)
        return -1;
    text[0] = 'a';
    for (size_t i = 0; i < 2; i++)
        sum += table[i] + text[0];
    bth_release(text);
    return n > 3 ? sum : 0;
}
END
    sed 's/i < 2/i <= 2/' "$1/nothing.c" >"$1/out-of-bounds.c"
    sed "s/= 'a';/&\\n    if (n > 7)\\n        return -2;/" "$1/nothing.c" >"$1/leak.c"
    # cppcheck 2.10 follows an argument, but not what was allocated and looked at.
    cat >"$1/use-after-release.c" <<'END'
#include "base/memory.h"
void berth_seed(char *text);
void berth_seed(char *text)
{
    bth_release(text);
    *text = 'a';
}
END
    mkdir "$1/tools"
    cp .clang-tidy "$1/"
    cp tools/.clang-tidy "$1/tools/"
    cat >"$1/tools/nothing.c" <<'END'
#include <stdio.h>
#include <stdlib.h>
int command_seed(size_t n);
int command_seed(size_t n)
{
    char *text = malloc(8);

    if (!text)
        return -1;
    text[0] = 'a';
    fputc(text[0], stderr);
    free(text);
    return n > 3;
}
END
    sed '/free(text)/d' "$1/tools/nothing.c" >"$1/tools/leak.c"
    ! cmp -s "$1/nothing.c" "$1/out-of-bounds.c" && ! cmp -s "$1/nothing.c" "$1/leak.c" &&
        ! cmp -s "$1/tools/nothing.c" "$1/tools/leak.c"
}

# analysis_awake ANALYZER: it finds what was sown, and nothing else.
analysis_awake() {
    local folder seed asleep=0
    folder=$(mktemp -d)
    make_seeds "$folder" || return 1
    for seed in "$folder"/{,tools/}*.c; do
        echo "== $1: ${seed#"$folder"/}"
        if "analysis_$1" "$seed"; then
            [ "$(basename "$seed")" = nothing.c ] || { echo "not found"; asleep=1; }
        else
            [ "$(basename "$seed")" != nothing.c ] || { echo "found something"; asleep=1; }
        fi
    done
    rm -rf "$folder"
    return "$asleep"
}
