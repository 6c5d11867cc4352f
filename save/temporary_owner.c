/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/temporary_owner.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config/lock.h"
#include "io/file.h"
#include "io/syscalls.h"

#define STAT_NBYTES 1024
#define LINK_NBYTES 64
/* Of the fields in /proc/PID/stat. The second is the program's name, in parentheses. */
#define STATE_FIELD 3
#define N_THREADS_FIELD 20
#define START_FIELD 22

/* A number that begins here, with no sign and no blank, and ends before `end`. */
static bool parse(const char **at, char end, unsigned long long *number)
{
    char *behind;

    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *number = strtoull(*at, &behind, 10);
    *at = behind + 1;
    return errno == 0 && *behind == end;
}

/* The number in a namespace's link, "pid:[4026531836]". */
static bool read_namespace(const char *path, unsigned long long *number)
{
    char text[LINK_NBYTES];
    ssize_t n = bth_system.readlinkat(AT_FDCWD, path, text, sizeof text - 1);

    if (n <= 0)
        return false;
    text[n] = '\0';
    const char *at = strchr(text, '[');
    return at && parse(&(const char *){at + 1}, ']', number);
}

/*
 * When a process started, in clock ticks since the boot. `of`: its part of a path. *is_over:
 * it has ended, and its parent has not asked for how yet: nothing of it runs any more.
 */
static bool read_start(const char *of, unsigned long long *start, bool *is_over)
{
    char path[LINK_NBYTES], text[STAT_NBYTES], state = ' ';
    unsigned long long n_threads = 0;

    (void)snprintf(path, sizeof path, "/proc/%.40s/stat", of);
    if (!bth_file_read_text(path, text, sizeof text))
        return false;
    const char *at = strrchr(text, ')'); /* the name may hold anything, also parentheses */
    for (int field = 3; at && field <= START_FIELD; field++) {
        at = strchr(at + 1, ' ');
        if (at && field == STATE_FIELD)
            state = at[1];
        if (at && field == N_THREADS_FIELD)
            (void)parse(&(const char *){at + 1}, ' ', &n_threads);
    }
    *is_over = state == 'X' || (state == 'Z' && n_threads <= 1);
    return at && parse(&(const char *){at + 1}, ' ', start);
}

/* Whether /proc counts processes as this one does: it may be another pid namespace's. */
static bool is_own_proc(void)
{
    char text[LINK_NBYTES];
    ssize_t n = bth_system.readlinkat(AT_FDCWD, "/proc/self", text, sizeof text - 1);

    if (n <= 0)
        return false;
    text[n] = '\0';
    return strtol(text, NULL, 10) == (long)getpid();
}

/* ---- this process ---- */

/* What /proc says of it, asked for once. */
static struct {
    bth_lock lock;    /* of the rest */
    uint64_t process; /* whose it is; 0: nobody has asked */
    pid_t id;         /* likewise: taken for another process, this one would look dead */
    char host[BTH_TEMPORARY_OWNER_NBYTES]; /* "1 <boot id> <pid namespace> <time namespace> "; "":
                                            * no /proc
                                            */
    unsigned long long start;
} known;

/*
 * Kernels before 5.6 have no time namespaces. /proc/self has none at all where the first thread has
 * ended.
 */
static bool describe_host(void)
{
    char boot[LINK_NBYTES];
    unsigned long long processes, time = 0;

    if (!bth_file_read_text("/proc/sys/kernel/random/boot_id", boot, sizeof boot) ||
        !read_namespace("/proc/thread-self/ns/pid", &processes))
        return false;
    boot[strcspn(boot, " \n")] = '\0';
    (void)read_namespace("/proc/thread-self/ns/time", &time);
    (void)snprintf(known.host, sizeof known.host, "1 %s %llu %llu ", boot, processes, time);
    return true;
}

/*
 * By its first thread: qemu shows a start of its own making in /proc/self/stat. Where /proc is
 * another pid namespace's, the thread has another number there.
 */
static bool read_own_start(void)
{
    char first[LINK_NBYTES];
    bool is_over;

    (void)snprintf(first, sizeof first, "self/task/%ld", (long)getpid());
    return read_start(first, &known.start, &is_over) || read_start("self", &known.start, &is_over);
}

/* False where /proc does not tell. `host` has room for BTH_TEMPORARY_OWNER_NBYTES. */
static bool know_this(char *host, unsigned long long *start)
{
    (void)bth_lock_take(&known.lock);
    if (known.process != bth_process() || known.id != getpid()) {
        known.host[0] = '\0';
        if (!read_own_start() || !describe_host())
            known.host[0] = '\0';
        known.process = known.host[0] ? bth_process() : 0;
        known.id = getpid();
    }
    memcpy(host, known.host, sizeof known.host);
    *start = known.start;
    bth_lock_give(&known.lock);
    return host[0];
}

bool bth_temporary_owner_self(char text[BTH_TEMPORARY_OWNER_NBYTES])
{
    unsigned long long start;

    if (!know_this(text, &start))
        return false;
    size_t n = strlen(text);
    (void)snprintf(text + n, BTH_TEMPORARY_OWNER_NBYTES - n, "%ld %llu", (long)getpid(), start);
    return true;
}

/* ---- another one ---- */

/* X5: only what this kernel says counts. What cannot be known is taken to be alive. */
static berth_temporary_state look_for(long process, unsigned long long start)
{
    unsigned long long now;
    char first[LINK_NBYTES];
    bool is_over;

    if (bth_system.kill((pid_t)process, 0) < 0 && errno == ESRCH)
        return BERTH_TEMPORARY_DEAD;
    (void)snprintf(first, sizeof first, "%ld/task/%ld", process, process);
    if (is_own_proc() && read_start(first, &now, &is_over) && (now != start || is_over))
        return BERTH_TEMPORARY_DEAD;
    return BERTH_TEMPORARY_ALIVE;
}

berth_temporary_state bth_temporary_owner_state(const char *text)
{
    char host[BTH_TEMPORARY_OWNER_NBYTES];
    unsigned long long process, start;

    if (!know_this(host, &start) || strncmp(text, host, strlen(host)) != 0)
        return BERTH_TEMPORARY_UNKNOWN;
    /* A stranger's text: a process of 0 or less would mean a group of processes to kill. */
    const char *at = text + strlen(host);
    if (!parse(&at, ' ', &process) || process == 0 || process > INT32_MAX ||
        !parse(&at, '\0', &start))
        return BERTH_TEMPORARY_UNKNOWN;
    return look_for((long)process, start);
}
