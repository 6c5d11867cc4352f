# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash
# Sourced by tools/check: runs parts of the tests, some at a time, tells what begins, what ends and how long is
# left, and counts. A part is a row of the table in tests/README.md and a function part_NAME of tools/check, which
# calls one, may, criterion and script. What these tell goes through a pipe to the one loop that prints.

declare -A tier needs recorded         # of each part, from the table
declare -A state began process limit   # of each part that was asked for; state: running, done, failed, unfit
declare -A step step_log               # what a running part is at
declare -A passed failed skipped       # of each part
declare -A again                       # parts that failed, and run once more; yes, or now
all_parts=()
failures=() # PART LOG WORDS
unsteady=()
told_at=0
logs=$BUILD/check
# Tests of ^C and of a closed terminal begin with what a terminal gives, also under nohup, or where a shell made this
# a job in the background.
signals=(env --default-signal=HUP,INT,QUIT,PIPE,TERM)
at_once=$(($(nproc) < 4 ? $(nproc) : 4))
share=1 # of these, a part's own: if fewer parts than that run

# ---- the table ----

read_parts() {
    local name each what seconds
    while IFS='|' read -r _ name each what seconds _; do
        read -r name <<<"${name//\`/}"
        all_parts+=("$name")
        read -r "tier[$name]" <<<"$each"
        read -r "needs[$name]" <<<"$what"
        read -r "recorded[$name]" <<<"$seconds"
    done < <(sed -n '/<!-- parts -->/,/<!-- end of parts -->/p' tests/README.md | grep '^| `')
}

list_parts() {
    local name
    printf '%-18s %-6s %9s   %s\n' part tier seconds needs
    for name in "${all_parts[@]}"; do
        printf '%-18s %-6s %9s   %s\n' "$name" "${tier[$name]}" "${recorded[$name]}" "${needs[$name]}"
    done
}

# ---- time ----

# A limit ends what hangs, not what is slow: this machine may be a slow one, or busy with ten other things. In the
# long form nobody knows: it is as long as it is.
limit_of() {
    [ "$BERTH_LONG" = 0 ] && say $((900 + recorded[$1] * 5 * slowness / 100)) || say 43200
}

clock() {
    local s=${1:-$SECONDS}
    printf '%d:%02d' $((s / 60)) $((s % 60))
}

about() {
    if (($1 < 90)); then
        say "about $(($1 < 10 ? 10 : ($1 + 5) / 10 * 10)) s"
    else
        say "about $((($1 + 30) / 60)) min"
    fi
}

# How slow this machine is, in hundredths of the one that the table is of: by the tests that have ended, and those
# that run for longer than there. How long needs take tells nothing: much of it may be there already.
slowness=100
real_sum=60
recorded_sum=60
learn() {
    local real=$real_sum of=$recorded_sum name
    for name in "${!process[@]}"; do
        if [ "${tier[$name]}" != need ] && ((SECONDS - began[$name] > recorded[$name])); then
            real=$((real + SECONDS - began[$name]))
            of=$((of + recorded[$name]))
        fi
    done
    slowness=$((real * 100 / of))
}

# ended PART: its seconds, by the clock and of processors.
ended() {
    local cpu
    [ "${tier[$1]}" = need ] || ((real_sum += SECONDS - began[$1], recorded_sum += recorded[$1]))
    cpu=$(awk '{ for (i = 1; i <= 2; i++) { split($i, a, "[ms]"); sum += 60 * a[1] + a[2] } } END { printf "%.0f", sum }' \
        "$logs/$1.times" 2>/dev/null)
    printf '%s %d %s\n' "$1" $((SECONDS - began[$1])) "${cpu:-?}" >>"$logs/times"
}

# Seconds until PART would have ended, with what it still needs, if it began now.
cost_of() {
    local sum=${recorded[$1]} each
    for each in ${needs[$1]}; do
        [[ ${state[$each]:-} == done ]] || sum=$((sum + recorded[$each]))
    done
    say $((sum * slowness / 100))
}

seconds_left() {
    local name sum=0 longest=0 left
    for name in "${queue[@]}"; do
        sum=$((sum + recorded[$name] * slowness / 100))
    done
    for name in "${!process[@]}"; do
        left=$((recorded[$name] * slowness / 100 - (SECONDS - began[$name])))
        left=$((left > 0 ? left : 5))
        sum=$((sum + left))
        longest=$((left > longest ? left : longest))
    done
    sum=$((sum / at_once))
    say $((sum > longest ? sum : longest))
}

# ---- in a part: one step, its result, by the pipe ----

tell() {
    local IFS=$'\t'
    printf '%s\n' "$*" >&"$events"
}

# begin NAME
begin() {
    log=$logs/$(printf '%s' "$1" | tr -c 'a-zA-Z0-9_-' '-').log
    step_began=$SECONDS
    tell begin "$part" "$1" "$log"
}

# count NAME PASSED FAILED [SKIPPED [REASON]]
count() {
    tell end "$part" "$1" "$2" "$3" "${4:-0}" "$((SECONDS - step_began))" "$log" "${5:-}"
}

# one NAME COMMAND...: counts as one, by its exit code.
one() {
    local name=$1
    shift
    begin "$name"
    # A subshell: a check cannot change this shell.
    if ("$@") >"$log" 2>&1 </dev/null {events}>&-; then
        count "$name" 1 0
    else
        count "$name" 0 1
        return 1
    fi
}

# may NAME COMMAND...: like one, but a failure means that this machine lacks something: it is skipped
# with the reason. With CI=true it fails.
may() {
    local name=$1
    if [ "${CI:-}" = true ]; then
        one "$@"
        return
    fi
    shift
    begin "$name"
    if ("$@") >"$log" 2>&1 </dev/null {events}>&-; then
        count "$name" 1 0
        return
    fi
    count "$name" 0 0 1 "$(tail -n 1 "$log")"
    return 1
}

# What criterion runs the program for, a filter a line: for all; or, if there are processors for several, for each suite.
filters_of() {
    [ "$share" -gt 1 ] || { echo '*'; return; }
    "$@" --list | sed -nE 's/^([a-z0-9_]+): .*/\1/p'
}

# criterion NAME PROGRAM...: counts by Criterion's synthesis lines, and what it skips by the lines that it prints
# if it is verbose; no synthesis, or no test, is a failure. A test that hangs is ended (tests/support/main.c).
criterion() {
    local name=$1 code n filters tested good without
    begin "$name"
    shift
    filters=$(filters_of "$@" 2>"$log")
    # One job at a time: with more, Criterion 2.4's own runner leaks now and then.
    # shellcheck disable=SC2016
    xargs -P "$share" -I{} "${signals[@]}" bash -c 'exec "$@" --jobs=1 --verbose --filter="{}/*" >"$0.{}" 2>&1' \
        "$log" "$@" <<<"$filters" >>"$log" 2>&1 {events}>&-
    code=$?
    cat "$log".* >>"$log" 2>/dev/null && rm "$log".*
    sed -i '/SKIP.*: Test is disabled$/d' "$log" # by the filter
    without=$(grep -c '\[.*SKIP.*\]' "$log")
    sed -i '/\[[^][]*\(RUN\|PASS\) *[^][]*\]/d' "$log" # the end of the log shows what fails
    read -r n tested good < <(sed 's/\x1b\[[0-9;]*m//g' "$log" | sed -nE \
        's/.*Synthesis: Tested: ([0-9]+) \| Passing: ([0-9]+) .*/\1 \2/p' |
        awk '{ tested += $1; good += $2 } END { print NR, tested + 0, good + 0 }')
    if [ "$n" -ne "$(wc -l <<<"$filters")" ] || [ $((tested + without)) -eq 0 ]; then
        echo "no test reported; exit code $code" >>"$log"
        count "$name" 0 1
    elif [ "$code" -ne 0 ] && [ "$tested" -eq "$good" ]; then
        echo "every test passes, but the program ends with $code" >>"$log"
        count "$name" "$good" 1
    else
        count "$name" "$good" $((tested - good)) "$without"
    fi
}

# script NAME COMMAND...: counts by its last line "N passed, N failed", and by lines "skipped: ...".
script() {
    local name=$1 code good bad
    shift
    begin "$name"
    "${signals[@]}" "$@" >"$log" 2>&1 </dev/null {events}>&-
    code=$?
    read -r good bad < <(tail -n 1 "$log" |
        sed -nE 's/^([0-9]+) passed, ([0-9]+) failed.*$/\1 \2/p')
    if [ -z "${bad:-}" ] || [ $((good + bad)) -eq 0 ]; then
        echo "no count reported; exit code $code" >>"$log"
        count "$name" 0 1
    elif [ "$code" -ne 0 ] && [ "$bad" -eq 0 ]; then
        echo "nothing failed, but it ends with $code" >>"$log"
        count "$name" "$good" 1
    else
        count "$name" "$good" "$bad" "$(grep -c '^skipped: ' "$log")"
    fi
}

# ---- the loop that prints ----

print() {
    printf '%6s  %s\n' "$(clock)" "$*"
    told_at=$SECONDS
}

# step_ended PART NAME PASSED FAILED SKIPPED SECONDS LOG REASON
step_ended() {
    local line
    passed[$1]=$((${passed[$1]:-0} + $3))
    failed[$1]=$((${failed[$1]:-0} + $4))
    skipped[$1]=$((${skipped[$1]:-0} + $5))
    printf -v line '%-40s %5d passed' "$2" "$3"
    [ "$4" -eq 0 ] || { line+=", $4 FAILED"; failures+=("$1 $7 $2"); }
    [ "$5" -eq 0 ] || line+=", $5 skipped${8:+: $8}"
    print "$line, $6 s"
}

take_event() {
    case $1 in
    begin) step[$2]=$3 step_log[$2]=$4 ;;
    end) step_ended "${@:2}" ;;
    part)
        state[$2]=$3
        ;;
    esac
}

# The tests that a suite was in, by the logs of Criterion or of unittest (suite.py: two at a time).
last_test() {
    cat "$1" "$1".* 2>/dev/null | sed 's/\x1b\[[0-9;]*m//g' | awk '
        /^\[ *RUN *\] / { sub(/^\[ *RUN *\] */, ""); begun[$1] = 1 }
        /^\[ *(PASS|FAIL|SKIP) *\] / { sub(/^\[[^]]*\] */, ""); sub(/:$/, "", $1); delete begun[$1] }
        match($0, /^test[A-Za-z0-9_]* \([^)]*\)/) {
            name = substr($0, 1, RLENGTH)
            if (RLENGTH < length($0)) delete begun[name]; else begun[name] = 1
        }
        END { for (name in begun) { printf "%s%s", separator, name; separator = ", " } }'
}

start_part() {
    state[$1]=running
    began[$1]=$SECONDS
    limit[$1]=$(limit_of "$1")
    print "begins: $1, $(about $((recorded[$1] * slowness / 100)))"
    set -m # a process group of its own, to be ended with all that it started
    (
        part=$1
        set +m
        trap - INT TERM EXIT
        exec {lock}>&-
        "part_${1//-/_}"
        [ $? -eq 0 ] && result=done || result=failed
        times >"$logs/$1.times"
        tell part "$1" $result
    ) </dev/null &
    process[$1]=$!
    set +m
}

end_part() {
    kill -TERM -- "-${process[$1]}" 2>/dev/null
    sleep 2
    kill -KILL -- "-${process[$1]}" 2>/dev/null
}

# fail PART LOG WORDS: a failure that no step of it told.
fail() {
    failed[$1]=$((${failed[$1]:-0} + 1))
    failures+=("$*")
}

# stop_part PART REASON: it counts as a failure, which tells where it was.
stop_part() {
    local name=$1 at log
    log=${step_log[$name]:-$logs/none}
    at=$(last_test "$log")
    end_part "$name"
    fail "$name" "$log" "$name: ended after $((SECONDS - began[$name])) s, $2, in ${step[$name]:-its beginning}${at:+, in $at}"
    print "ENDED: ${failures[-1]#* * }"
    state[$name]=failed
}

# What has ended of its own, or must be ended.
reap() {
    local name
    for name in "${!process[@]}"; do
        if kill -0 "${process[$name]}" 2>/dev/null; then
            if ((SECONDS - began[$name] > limit[$name])); then
                stop_part "$name" "its limit"
            elif ((hard_end && SECONDS > hard_end)); then
                stop_part "$name" "as all must end now"
            else
                continue
            fi
        elif [ "${state[$name]}" = running ]; then
            drain # its last word may be on its way
            [ "${state[$name]}" != running ] || stop_part "$name" "without a word"
        fi
        wait "${process[$name]}" 2>/dev/null
        unset "process[$name]"
        ended "$name"
        judge "$name"
    done
    learn
}

# failures_but PART: forgets those of PART; into forgotten.
failures_but() {
    local each others=()
    forgotten=()
    for each in "${failures[@]}"; do
        if [ "${each%% *}" = "$1" ]; then forgotten+=("$each"); else others+=("$each"); fi
    done
    failures=("${others[@]}")
}

# judge PART: tests that fail run once more, alone, after all others. If they pass then, they are no failure, but
# unsteady: the end says so, with the log of the first time.
judge() {
    local name=$1
    if [ "${again[$name]:-}" = now ]; then
        again[$name]=over
        [ "${failed[$name]}" -gt 0 ] || unsteady+=("${first_failures[@]}")
    elif [ "${failed[$name]:-0}" -gt 0 ] && [ "${tier[$name]}" != need ]; then
        again[$name]=yes
    fi
}

# run_again PART: what it counted is forgotten, its logs are kept beside.
run_again() {
    local each of log words
    failures_but "$1"
    first_failures=()
    for each in "${forgotten[@]}"; do
        read -r of log words <<<"$each"
        [ "$log" = "$logs/none" ] || { mv "$log" "${log%.log}.first.log" 2>/dev/null && log=${log%.log}.first.log; }
        first_failures+=("$of $log $words")
    done
    passed[$1]=0 failed[$1]=0 skipped[$1]=0 again[$1]=now
    print "once more, alone: $1"
    start_part "$1"
}

# take SECONDS: one event, if one comes. What a timeout cuts off is kept: the rest of the line comes with the next call.
line=
take() {
    local more code event
    IFS= read -r -t "$1" -u "$events" more
    code=$?
    line+=$more
    [ "$code" -eq 0 ] || return 1
    IFS=$'\t' read -r -a event <<<"$line"
    line=
    take_event "${event[@]}"
}

drain() {
    while take 0.05; do :; done
}

heartbeat() {
    local name text=
    ((SECONDS - told_at >= 8)) || return
    for name in "${!process[@]}"; do
        text+="${text:+; }$name $((SECONDS - began[$name])) s"
        [ "${step[$name]:-$name}" = "$name" ] || text+=" (${step[$name]})"
    done
    print "... $text; $(about "$(seconds_left)") left"
}

# How many run that need a core: what is fetched from a network does not.
n_running() {
    local n=0 name
    for name in "${!process[@]}"; do
        [ "$name" = torch ] || n=$((n + 1))
    done
    say "$n"
}

# may_begin PART: 0 it may, 1 not yet, 2 never. Starts what it needs.
may_begin() {
    local each
    for each in ${needs[$1]}; do
        case ${state[$each]:-} in
        done) ;;
        running) return 1 ;;
        failed)
            fail "$1" "$logs/none" "$1: not run, as $each failed"
            print "NOT RUN: $1, as $each failed"
            return 2
            ;;
        *)
            may_begin "$each"
            case $? in 0) start_part "$each" ;; 2) state[$each]=failed ;; esac
            return 1
            ;;
        esac
    done
}

# True: it does not fit into the minutes that are left.
is_too_long() {
    [ -n "$minutes" ] && [ "${tier[$1]}" != quick ] && (($(cost_of "$1") + SECONDS > minutes * 60))
}

# Starts what can be started, in the order of the queue.
fill() {
    local name waiting=()
    for name in "${queue[@]}"; do
        if (($(n_running) >= at_once)); then
            waiting+=("$name")
        elif is_too_long "$name"; then
            state[$name]=unfit
            unfit+=("$name")
        else
            may_begin "$name"
            case $? in
            0) start_part "$name" ;;
            1) waiting+=("$name") ;;
            2) state[$name]=failed ;;
            esac
        fi
    done
    queue=("${waiting[@]}")
    ((${#process[@]} + ${#queue[@]} == 0)) || return
    for name in "${all_parts[@]}"; do
        [ "${again[$name]:-}" != yes ] || { run_again "$name"; return; }
    done
}

# run_parts PART...: in this order, as far as what they need allows.
run_parts() {
    local pipe
    queue=("$@")
    unfit=()
    share=$(grep -vc house <<<"$(printf '%s\n' "$@")")
    share=$((share > 0 && share < at_once ? at_once / share : 1))
    hard_end=$((${minutes:-0} * 2 * 60))
    pipe=$(mktemp -u) && mkfifo "$pipe" && exec {events}<>"$pipe" && rm "$pipe" || exit 2
    exec {lock}>"$BUILD/check.lock"
    flock -n "$lock" || { say "another tools/check runs in $BUILD; BUILD=folder builds in another place" >&2; exit 2; }
    rm -rf "$logs"
    mkdir -p "$logs"
    : >"$logs/none"
    trap 'for name in "${!process[@]}"; do end_part "$name"; done; exit 130' INT TERM
    fill
    while ((${#process[@]} + ${#queue[@]})); do
        if take 1; then drain; fi
        reap
        fill
        heartbeat
    done
}

# Fault points that tests reported, by the label in SAFETY.md: of one variant, as both try the same.
fault_points() {
    local of=$logs/asan-faults.log
    [ -e "$of" ] || of=$logs/debug-faults.log
    cat /dev/null "$of" "$logs/faults.log" 2>/dev/null |
        sed -nE 's/^ *fault points (W[0-9]+): ([0-9]+)$/\1 \2/p' | sort -V |
        awk '!seen[$1]++ { order[++lines] = $1 }
             { n[$1] += $2; sum += $2 }
             END { if (!sum) exit
                   printf "\nfault points tried:"
                   for (i = 1; i <= lines; i++) printf " %s %d", order[i], n[order[i]]
                   printf ", %d in all\n", sum }'
}

# show_log PART LOG WORDS
show_log() {
    printf '\n---- %s\n' "${*:3}"
    tail -n 120 "$2"
}

sum_of() {
    local IFS=+
    say $(($*))
}

finish() {
    local each good bad without
    good=$(sum_of 0 "${passed[@]}") bad=$(sum_of 0 "${failed[@]}") without=$(sum_of 0 "${skipped[@]}")
    fault_points
    for each in "${failures[@]}" "${unsteady[@]}"; do
        # shellcheck disable=SC2086 # three words and more
        show_log $each
    done
    [ ${#failures[@]} -eq 0 ] || printf '\nfailed:\n'
    [ ${#failures[@]} -eq 0 ] || printf '  %s\n' "${failures[@]#* * }"
    [ ${#unsteady[@]} -eq 0 ] ||
        printf '\nunsteady: failed once, and passed once more, alone; a fault of the test or of Berth:\n'
    [ ${#unsteady[@]} -eq 0 ] || printf '  %s\n' "${unsteady[@]#* * }"
    [ ${#unfit[@]} -eq 0 ] ||
        printf '\nnot run, as %s minutes are not enough (tools/check --deep PART): %s\n' "$minutes" "${unfit[*]}"
    printf '\nafter %s min\n' "$(clock)"
    printf '%d passed, %d failed%s\n' "$good" "$bad" "$([ "$without" -eq 0 ] || printf ', %d skipped' "$without")"
    [ "$bad" -eq 0 ] && [ "$good" -gt 0 ]
    exit
}
