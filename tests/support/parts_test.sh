#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The loop of tools/check, run on parts that pass, that fail once, and that fail always.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$(mktemp -d) && cd "$folder" && mkdir tests || exit 2
trap 'rm -rf "$folder"' EXIT
printf '%s\n' '#!/bin/bash' '[ -z "$(trap -p HUP)" ] || set 0 1' 'printf "%s passed, %s failed\n" "$@"' >counted
chmod +x counted
good=0
bad=0

# expect TEXT: what is run on standard input says it, whole lines
expect() {
    if grep -qxF -- "$1" out; then
        good=$((good + 1))
    else
        bad=$((bad + 1))
        printf 'no line: %s\n' "$1"
        cat out
    fi
}

# check PART...: into out; its exit code as the last line
check() {
    {
        printf '%s\n' '<!-- parts -->'
        printf '| `%s` | %s | | 1 | | |\n' need need steady quick once quick hanging quick always quick halves quick
        printf '%s\n' '<!-- end of parts -->'
    } >tests/README.md
    (
        trap '' HUP # as nohup has it; tests get the default
        say() { printf '%s\n' "$*"; }
        BUILD=$folder BERTH_LONG=0 minutes=1
        # shellcheck source=tests/support/parts.sh
        . "$here/parts.sh"
        limit_of() { say 2; }
        once() { [ -e "$1" ] || { : >"$1"; return 1; }; }
        part_steady() { script steady ./counted 5 0; }
        part_once() { one again once "$folder/a" && one other true; script both ./counted 2 0; }
        in_tests='test_x (m.A)\ntest_y (m.B)\ntest_x (m.A) ... ok, 0.1 s\n' # of two processes
        part_hanging() { one hanging eval 'once b || { printf "$in_tests"; sleep 60; }'; }
        part_halves() {
            printf 'end\thalves\thalves\t' >&"$events"
            sleep 1.5 # longer than the loop waits
            printf '7\t0\t0\t0\t%s\n' "$logs/none" >&"$events"
        }
        part_always() { script always ./counted 1 2; }
        read_parts
        run_parts "$@"
        finish
    ) >out 2>&1
    printf 'exit code %s\n' $? >>out
}

check halves
expect '7 passed, 0 failed'
check steady once
expect '  again'
expect '9 passed, 0 failed'
[ -e check/again.first.log ] && expect 'exit code 0'
rm -f a b
check steady hanging
sed -i 's/ended after [0-9]* s/ended/' out
expect '  hanging: ended, its limit, in hanging, in test_y (m.B)'
expect '6 passed, 0 failed'
expect 'exit code 0'
rm -f a b
check once always
expect 'failed:'
expect '  always'
expect '5 passed, 2 failed'
expect 'exit code 1'

printf '%d passed, %d failed\n' "$good" "$bad"
[ "$bad" -eq 0 ]
