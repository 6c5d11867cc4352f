/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that can really be had: the system's, and what control groups of either version leave. */
#include "io/page_cache.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/support.h"

#define MEMINFO "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nSwapFree:           0 kB\n"
#define AVAILABLE (8000ull * 1024)

typedef unsigned long long ull;

static char *root;

/* A file under the root, and all folders above it. */
static void put(const char *name, const char *text)
{
    char *path = test_path(root, name);

    for (char *at = path + strlen(root) + 1; (at = strchr(at, '/')) != NULL; *at++ = '/') {
        *at = '\0';
        (void)mkdir(path, 0700);
    }
    test_write_file(path, text, strlen(text));
    free(path);
}

static void set_up(void)
{
    root = test_folder_new();
    put("proc/meminfo", MEMINFO);
}

static void tear_down(void)
{
    char command[300];

    (void)snprintf(command, sizeof command, "rm -r '%s'/*", root);
    cr_expect_eq(system(command), 0);
    test_folder_remove(root);
}

TestSuite(free_memory, .init = set_up, .fini = tear_down);

#define V2 "sys/fs/cgroup"
#define V1 "sys/fs/cgroup/memory"

Test(free_memory, is_what_the_system_has_available_and_free_swap)
{
    cr_expect_eq(bth_free_memory_nbytes(root), AVAILABLE);
    put("proc/meminfo", "MemAvailable: 77 kB\nSwapFree: 500 kB\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 577 * 1024);
    put("proc/meminfo", "MemAvailable: 77 kB\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 77 * 1024);
}

Test(free_memory, is_unknown_where_nobody_tells)
{
    cr_expect_eq(bth_free_memory_nbytes("/nowhere"), UINT64_MAX);
    put("proc/meminfo", "MemTotal: 77 kB\n");
    cr_expect_eq(bth_free_memory_nbytes(root), UINT64_MAX);
    put("proc/meminfo", "");
    cr_expect_eq(bth_free_memory_nbytes(root), UINT64_MAX);
}

Test(free_memory, is_what_a_group_leaves_if_that_is_less)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put(V2 "/a/b/memory.max", "5000000\n");
    put(V2 "/a/b/memory.current", "3000000\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 2000000);
    put(V2 "/a/b/memory.stat", "anon 1\ninactive_file 700000\nactive_file 300000\nfile 9\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 3000000, "file pages can go");
    put(V2 "/a/b/memory.current", "6000000\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 0);
    put(V2 "/a/b/memory.current", "100\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 5000000);
    put(V2 "/a/b/memory.max", "max\n");
    cr_expect_eq(bth_free_memory_nbytes(root), AVAILABLE);
}

Test(free_memory, is_what_the_groups_around_leave_too)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put(V2 "/a/b/memory.max", "5000000\n");
    put(V2 "/a/b/memory.current", "0\n");
    put(V2 "/a/memory.max", "4000000\n");
    put(V2 "/a/memory.current", "1000000\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 3000000);
    put(V2 "/memory.max", "10\n");
    put(V2 "/memory.current", "3\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 7);
}

/* The group's path is the host's: what is seen of it is mounted at the top. */
Test(free_memory, of_a_container)
{
    put("proc/self/cgroup", "0::/docker/0123456789\n");
    put(V2 "/memory.max", "6000000\n");
    put(V2 "/memory.current", "1000000\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 5000000);
    put("proc/self/cgroup", "0::/\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 5000000);
}

Test(free_memory, of_groups_of_the_first_version)
{
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n");
    put(V1 "/a/memory.limit_in_bytes", "5000000\n");
    put(V1 "/a/memory.usage_in_bytes", "4000000\n");
    put(V1 "/a/memory.stat", "inactive_file 9\ntotal_inactive_file 500000\ntotal_active_file 1\n");
    cr_expect_eq(bth_free_memory_nbytes(root), 1500001);
    put(V1 "/a/memory.limit_in_bytes", "9223372036854771712\n");
    cr_expect_eq(bth_free_memory_nbytes(root), AVAILABLE);
}

/* X15: a group of 10,000,000 bytes with 9,000,000 used, of which something can be reclaimed. */
static const struct reclaimed {
    const char *what, *stat, *kernel, *meminfo;
    uint64_t v2, v1;
} reclaimed[] = {
    {.what = "nothing", .stat = "", .v2 = 1000000, .v1 = 1000000},
    {.what = "memory of programs, of tmpfs, and locked",
     .stat = "anon 4\nfile 7000000\nshmem 7000000\nunevictable 99\ninactive_anon 7\n"
             "total_rss 4\ntotal_cache 7000000\ntotal_shmem 7000000\ntotal_unevictable 99\n",
     .v2 = 1000000,
     .v1 = 1000000},
    {.what = "file pages, dirty ones too",
     .stat = "inactive_file 2000000\nactive_file 300000\nfile_dirty 2000000\n"
             "total_inactive_file 2000000\ntotal_active_file 300000\ntotal_dirty 2000000\n",
     .v2 = 3300000,
     .v1 = 3300000},
    {.what = "slabs, which only the second version tells",
     .stat = "slab 8000000\nslab_reclaimable 5000000\nslab_unreclaimable 3000000\n",
     .v2 = 6000000,
     .v1 = 1000000},
    {.what = "memory of the kernel, which is slabs at most",
     .kernel = "4000000\n",
     .stat = "",
     .v2 = 1000000,
     .v1 = 5000000},
    {.what = "the same, and the system has fewer slabs",
     .kernel = "4000000\n",
     .stat = "",
     .meminfo = "SReclaimable: 1000 kB\n",
     .v2 = 1000000,
     .v1 = 2024000},
    {.what = "the same, in a container where lxcfs shows none",
     .kernel = "4000000\n",
     .stat = "",
     .meminfo = "SReclaimable: 0 kB\n",
     .v2 = 1000000,
     .v1 = 5000000},
    {.what = "file pages and slabs together, more than is used",
     .stat = "inactive_file 5000000\nslab_reclaimable 5000000\ntotal_inactive_file 5000000\n",
     .kernel = "5000000\n",
     .v2 = 10000000,
     .v1 = 10000000},
};

static uint64_t free_in(const char *groups)
{
    put("proc/self/cgroup", groups);
    return bth_free_memory_nbytes(root);
}

Test(free_memory, counts_what_can_be_reclaimed_as_free_X15)
{
    char meminfo[200];

    put(V2 "/a/memory.max", "10000000\n");
    put(V2 "/a/memory.current", "9000000\n");
    put(V1 "/a/memory.limit_in_bytes", "10000000\n");
    put(V1 "/a/memory.usage_in_bytes", "9000000\n");
    for (size_t i = 0; i < sizeof reclaimed / sizeof reclaimed[0]; i++) {
        const struct reclaimed *c = &reclaimed[i];
        put(V2 "/a/memory.stat", c->stat);
        put(V1 "/a/memory.stat", c->stat);
        put(V1 "/a/memory.kmem.usage_in_bytes", c->kernel ? c->kernel : "");
        (void)snprintf(meminfo, sizeof meminfo, "MemAvailable: 99999 kB\n%s",
                       c->meminfo ? c->meminfo : "");
        put("proc/meminfo", meminfo);
        cr_expect_eq(free_in("0::/a\n"), c->v2, "%s, v2: %llu", c->what, (ull)free_in("0::/a\n"));
        cr_expect_eq(free_in("4:memory:/a\n"), c->v1, "%s, v1: %llu", c->what,
                     (ull)free_in("4:memory:/a\n"));
    }
}

/* The same with 1,000,000 bytes left: what is in memory may go to swap, as far as the group may. */
static const struct swapped {
    const char *what, *limit, *used, *limit_with_memory, *used_with_memory;
    uint64_t free;
} swapped[] = {
    {"all of the system's", "max\n", "0\n", "9223372036854771712\n", "9000000\n", 3048000},
    {"nobody counts it", "", "", "", "", 3048000},
    {"some", "700000\n", "200000\n", "10700000\n", "9200000\n", 1500000},
    {"none", "0\n", "0\n", "10000000\n", "9000000\n", 1000000},
};

Test(free_memory, counts_swap_that_the_group_may_use_as_free_X15)
{
    put("proc/meminfo", "MemAvailable: 99999 kB\nSwapFree: 2000 kB\n");
    put(V2 "/a/memory.max", "10000000\n");
    put(V2 "/a/memory.current", "9000000\n");
    put(V1 "/a/memory.limit_in_bytes", "10000000\n");
    put(V1 "/a/memory.usage_in_bytes", "9000000\n");
    for (size_t i = 0; i < sizeof swapped / sizeof swapped[0]; i++) {
        const struct swapped *c = &swapped[i];
        put(V2 "/a/memory.swap.max", c->limit);
        put(V2 "/a/memory.swap.current", c->used);
        put(V1 "/a/memory.memsw.limit_in_bytes", c->limit_with_memory);
        put(V1 "/a/memory.memsw.usage_in_bytes", c->used_with_memory);
        cr_expect_eq(free_in("0::/a\n"), c->free, "%s, v2: %llu", c->what, (ull)free_in("0::/a\n"));
        cr_expect_eq(free_in("4:memory:/a\n"), c->free, "%s, v1: %llu", c->what,
                     (ull)free_in("4:memory:/a\n"));
    }
}

Test(free_memory, of_this_machine_is_a_number_of_bytes)
{
    uint64_t nbytes = bth_free_memory_nbytes("");

    cr_expect(nbytes > 1000000, "%llu", (unsigned long long)nbytes);
}
