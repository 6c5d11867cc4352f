/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The process that owns a temporary, as text (X5): "1 <boot id> <pid namespace> <time namespace>
 * <pid> <start>". Two hosts have two boot ids, and two containers of one host have two pid
 * namespaces. If a pid is used again, the start differs. It is in clock ticks since the boot, as
 * the time namespace counts them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/lock.h"
#include "io/file.h"
#include "io/syscalls.h"
#include "save/temporary.h"

#define STAT_NBYTES 1024
#define LINK_NBYTES 64
/* Numbers of fields in /proc/PID/stat. The second is the program's name, in parentheses. */
#define STATE_FIELD 3
#define N_THREADS_FIELD 20
#define START_FIELD 22

/* Parses a number without sign or blank, up to the character `end`. */
static bool owner_parse_number(const char **at, char end, unsigned long long *number)
{
    char *behind;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *number = strtoull(*at, &behind, 10);
    *at = behind + 1;
    return errno == 0 && *behind == end;
}

static bool owner_read_link(const char *path, char text[LINK_NBYTES])
{
    ssize_t n = bth_system.readlinkat(AT_FDCWD, path, text, LINK_NBYTES - 1);

    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

/* Reads the number in a namespace's link, "pid:[4026531836]". */
static bool owner_read_namespace(const char *path, unsigned long long *number)
{
    char text[LINK_NBYTES];
    const char *at = owner_read_link(path, text) ? strchr(text, '[') : NULL;

    return at && owner_parse_number(&(const char *){at + 1}, ']', number);
}

/*
 * Reads when a process started, in clock ticks since the boot. `of`: its part of the path.
 * *is_over: it has ended (a zombie), and none of its threads runs.
 */
static bool owner_read_start_time_and_state(const char *of, unsigned long long *start,
                                            bool *is_over)
{
    char path[LINK_NBYTES], text[STAT_NBYTES], state = ' ';
    unsigned long long n_threads = 0;

    (void)snprintf(path, sizeof path, "/proc/%.40s/stat", of);
    if (!bth_file_read_start_as_text(path, text, sizeof text))
        return false;
    const char *at = strrchr(text, ')'); /* the name may hold parentheses */
    for (int field = 3; at && field <= START_FIELD; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == STATE_FIELD)
            state = at[1];
        if (at && field == N_THREADS_FIELD)
            (void)owner_parse_number(&(const char *){at + 1}, ' ', &n_threads);
    }
    *is_over = state == 'X' || (state == 'Z' && n_threads <= 1);
    return at && owner_parse_number(&(const char *){at + 1}, ' ', start);
}

/* Whether /proc has this process's pids: it may belong to another pid namespace. */
static bool owner_proc_shows_our_pids(void)
{
    char text[LINK_NBYTES];

    return owner_read_link("/proc/self", text) && strtol(text, NULL, 10) == (long)getpid();
}

/* ---- this process ---- */

/* What /proc says of this process, read once. */
static struct {
    bth_lock lock;    /* of the rest */
    uint64_t process; /* that read it; 0: none */
    pid_t id;         /* the same, as a pid: with another process's, this one would look dead */
    char host[BTH_TEMPORARY_OWNER_NBYTES]; /* "1 <boot id> <pid namespace> <time namespace> "; "":
                                            * no /proc
                                            */
    unsigned long long start;
} known;

/* Kernels before 5.6 have no time namespaces. /proc/self has none after the first thread's end. */
static bool owner_describe_host(void)
{
    char boot[LINK_NBYTES];
    unsigned long long processes, time = 0;

    if (!bth_file_read_start_as_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        !owner_read_namespace("/proc/thread-self/ns/pid", &processes))
        return false;
    boot[strcspn(boot, " \n")] = '\0';
    (void)owner_read_namespace("/proc/thread-self/ns/time", &time);
    (void)snprintf(known.host, sizeof known.host, "1 %s %llu %llu ", boot, processes, time);
    return true;
}

/* The start of its first thread: in qemu that in /proc/self/stat is wrong. If /proc belongs to
 * another pid namespace, the thread has another number there. */
static bool owner_read_own_start(void)
{
    char first[LINK_NBYTES];
    bool is_over;

    (void)snprintf(first, sizeof first, "self/task/%ld", (long)getpid());
    return owner_read_start_time_and_state(first, &known.start, &is_over) ||
           owner_read_start_time_and_state("self", &known.start, &is_over);
}

/* False without /proc. `host` has BTH_TEMPORARY_OWNER_NBYTES bytes. */
static bool owner_get_own_host_and_start(char *host, unsigned long long *start)
{
    (void)bth_lock_acquire(&known.lock);
    if (known.process != bth_process_unique_number() || known.id != getpid()) {
        known.host[0] = '\0';
        if (!owner_read_own_start() || !owner_describe_host())
            known.host[0] = '\0';
        known.process = known.host[0] ? bth_process_unique_number() : 0;
        known.id = getpid();
    }
    memcpy(host, known.host, sizeof known.host);
    *start = known.start;
    bth_lock_release(&known.lock);
    return host[0];
}

bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES])
{
    unsigned long long start;

    if (!owner_get_own_host_and_start(text, &start))
        return false;
    size_t n = strlen(text);
    (void)snprintf(text + n, BTH_TEMPORARY_OWNER_NBYTES - n, "%ld %llu", (long)getpid(), start);
    return true;
}

/* ---- another one ---- */

/* X5: a process that this kernel does not call dead counts as alive. */
static berth_temporary_state owner_process_state(long process, unsigned long long start)
{
    unsigned long long now;
    char first[LINK_NBYTES];
    bool is_over;

    if (bth_system.kill((pid_t)process, 0) < 0 && errno == ESRCH)
        return BERTH_TEMPORARY_DEAD;
    (void)snprintf(first, sizeof first, "%ld/task/%ld", process, process);
    if (owner_proc_shows_our_pids() && owner_read_start_time_and_state(first, &now, &is_over) &&
        (now != start || is_over))
        return BERTH_TEMPORARY_DEAD;
    return BERTH_TEMPORARY_ALIVE;
}

berth_temporary_state bth_temporary_owner_state(const char *text)
{
    char host[BTH_TEMPORARY_OWNER_NBYTES];
    unsigned long long process, start;

    if (!owner_get_own_host_and_start(host, &start) || strncmp(text, host, strlen(host)) != 0)
        return BERTH_TEMPORARY_UNKNOWN;
    /* Anybody may have written it: kill takes a pid of 0 or less for a group. */
    const char *at = text + strlen(host);
    if (!owner_parse_number(&at, ' ', &process) || process == 0 || process > INT32_MAX ||
        !owner_parse_number(&at, '\0', &start))
        return BERTH_TEMPORARY_UNKNOWN;
    return owner_process_state((long)process, start);
}
