/* SPDX-License-Identifier: BSD-3-Clause */
/* Memory that can really be had: the system's, and what control groups of either version leave. */
#include "io/free_memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/support.h"

#define MEMINFO "MemTotal:       16000 kB\nMemAvailable:    8000 kB\nSwapFree:         500 kB\n"
#define AVAILABLE (8500ull * 1024)

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
    cr_expect_eq(berth_free_memory(root), AVAILABLE);
    put("proc/meminfo", "MemAvailable: 77 kB\n");
    cr_expect_eq(berth_free_memory(root), 77 * 1024);
}

Test(free_memory, is_unknown_where_nobody_tells)
{
    cr_expect_eq(berth_free_memory("/nowhere"), UINT64_MAX);
    put("proc/meminfo", "MemTotal: 77 kB\n");
    cr_expect_eq(berth_free_memory(root), UINT64_MAX);
    put("proc/meminfo", "");
    cr_expect_eq(berth_free_memory(root), UINT64_MAX);
}

Test(free_memory, is_what_a_group_leaves_if_that_is_less)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put(V2 "/a/b/memory.max", "5000000\n");
    put(V2 "/a/b/memory.current", "3000000\n");
    cr_expect_eq(berth_free_memory(root), 2000000);
    put(V2 "/a/b/memory.stat", "anon 1\ninactive_file 700000\nactive_file 300000\nfile 9\n");
    cr_expect_eq(berth_free_memory(root), 3000000, "file pages can go");
    put(V2 "/a/b/memory.current", "6000000\n");
    cr_expect_eq(berth_free_memory(root), 0);
    put(V2 "/a/b/memory.current", "100\n");
    cr_expect_eq(berth_free_memory(root), 5000000);
    put(V2 "/a/b/memory.max", "max\n");
    cr_expect_eq(berth_free_memory(root), AVAILABLE);
}

Test(free_memory, is_what_the_groups_around_leave_too)
{
    put("proc/self/cgroup", "0::/a/b\n");
    put(V2 "/a/b/memory.max", "5000000\n");
    put(V2 "/a/b/memory.current", "0\n");
    put(V2 "/a/memory.max", "4000000\n");
    put(V2 "/a/memory.current", "1000000\n");
    cr_expect_eq(berth_free_memory(root), 3000000);
    put(V2 "/memory.max", "10\n");
    put(V2 "/memory.current", "3\n");
    cr_expect_eq(berth_free_memory(root), 7);
}

/* The group's path is the host's: what is seen of it is mounted at the top. */
Test(free_memory, of_a_container)
{
    put("proc/self/cgroup", "0::/docker/0123456789\n");
    put(V2 "/memory.max", "6000000\n");
    put(V2 "/memory.current", "1000000\n");
    cr_expect_eq(berth_free_memory(root), 5000000);
    put("proc/self/cgroup", "0::/\n");
    cr_expect_eq(berth_free_memory(root), 5000000);
}

Test(free_memory, of_groups_of_the_first_version)
{
    put("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/a\n0::/\n");
    put(V1 "/a/memory.limit_in_bytes", "5000000\n");
    put(V1 "/a/memory.usage_in_bytes", "4000000\n");
    put(V1 "/a/memory.stat", "inactive_file 9\ntotal_inactive_file 500000\ntotal_active_file 1\n");
    cr_expect_eq(berth_free_memory(root), 1500001);
    put(V1 "/a/memory.limit_in_bytes", "9223372036854771712\n");
    cr_expect_eq(berth_free_memory(root), AVAILABLE);
}

Test(free_memory, of_this_machine_is_a_number_of_bytes)
{
    uint64_t nbytes = berth_free_memory("");

    cr_expect(nbytes > 1000000, "%llu", (unsigned long long)nbytes);
}
