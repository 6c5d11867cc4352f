/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X15: a load in a real memory cgroup that is nearly full. What can be reclaimed makes room; where
 * that is not enough the load is refused, for the system would kill the process.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scene.h"

#define MIB ((size_t)1 << 20)
#define LIMIT_NBYTES (256 * MIB)
#define FILLED_NBYTES (208 * MIB)
#define TENSOR_NBYTES (96 * MIB)

/* The names of one version of control groups. */
static const struct version {
    const char *top, *limit, *used, *swap, *swap_limit;
} versions[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
     "memory.memsw.limit_in_bytes", "268435456"},
    {"/sys/fs/cgroup", "memory.max", "memory.current", "memory.swap.max", "0"},
};

static const struct version *version;
static char group[100];

/* What the process in the group found. */
static struct findings {
    bool is_filled;
    int code;
    bool has_elements;
    berth_error error;
} * findings;

static bool tell_group(const char *name, const char *text)
{
    char file[300];

    (void)snprintf(file, sizeof file, "%s/%s", group, name);
    int fd = open(file, O_WRONLY | O_CLOEXEC);
    bool is_told = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        (void)close(fd);
    return is_told;
}

static bool is_full(void)
{
    char file[300], text[32] = "";

    (void)snprintf(file, sizeof file, "%s/%s", group, version->used);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    cr_assert_gt(read(fd, text, sizeof text - 1), 0);
    (void)close(fd);
    return strtoull(text, NULL, 10) >= FILLED_NBYTES;
}

/* ---- what fills it ---- */

/* Names that are not there: the kernel keeps that, each with its long name. */
static void fill_with_names(void)
{
    struct stat status;
    char name[400];

    for (unsigned i = 0; i < 4000000 && (i % 1024 != 0 || !is_full()); i++) {
        (void)snprintf(name, sizeof name, "%s/%0240u", folder, i);
        (void)stat(name, &status);
    }
}

static void touch(char *bytes)
{
    cr_assert_neq((void *)bytes, MAP_FAILED);
    for (size_t i = 0; i < FILLED_NBYTES; i += 4096)
        *(volatile char *)(bytes + i) = 1;
}

static void fill_with_memory(void)
{
    touch(mmap(NULL, FILLED_NBYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

static void fill_with_tmpfs(void)
{
    touch(mmap(NULL, FILLED_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

static int file; /* without a name, and kept until the process ends */

static char *map_new_file(void)
{
    file = open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    cr_assert_geq(file, 0);
    cr_assert_eq(ftruncate(file, (off_t)FILLED_NBYTES), 0);
    return mmap(NULL, FILLED_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
}

static void fill_with_dirty_pages(void)
{
    char *bytes = map_new_file();

    touch(bytes);
    cr_assert_eq(munmap(bytes, FILLED_NBYTES), 0);
}

static void fill_with_locked_pages(void)
{
    char *bytes = map_new_file();

    touch(bytes);
    /* Not by mlock, which is nothing with the address sanitizer. */
    if (syscall(SYS_mlock, bytes, FILLED_NBYTES) != 0)
        cr_assert_eq(ftruncate(file, 0), 0);
}

/* ---- a process in the group ---- */

static void load(void)
{
    berth_checkpoint *checkpoint;

    findings->code = berth_open(path, NULL, &checkpoint, &findings->error);
    if (findings->code < 0)
        return;
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "weight", NULL);
    const uint8_t *data = berth_tensor_data(checkpoint, tensor, &findings->error);
    findings->code = findings->error.code;
    findings->has_elements = data && data[0] == 7 && data[TENSOR_NBYTES - 1] == 7;
    berth_close(checkpoint);
}

/* The signal that ended it, or 0. */
static int run_in_group(void (*fill)(void))
{
    int status;
    pid_t child = fork();

    if (child == 0) {
        if (!tell_group("cgroup.procs", "0"))
            _exit(1);
        fill();
        findings->is_filled = is_full();
        load();
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the group takes no process");
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* ---- the group ---- */

static bool make_group(const struct version *v)
{
    char text[32];

    version = v;
    (void)snprintf(group, sizeof group, "%s/berth-test-%d", v->top, (int)getpid());
    (void)snprintf(text, sizeof text, "%zu", LIMIT_NBYTES);
    if (mkdir(group, 0700) == 0 && tell_group(v->limit, text) && tell_group(v->swap, v->swap_limit))
        return true;
    (void)rmdir(group);
    return false;
}

static void set_up(void)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    void *bytes = malloc(TENSOR_NBYTES);
    berth_error error;

    if (!make_group(&versions[0]) && !make_group(&versions[1]))
        cr_skip_test("no memory cgroup without swap can be made here");
    (void)rmdir(group);
    begin_model_scene();
    memset(bytes, 7, TENSOR_NBYTES);
    berth_dict_set(root, "weight", test_vector(tree, BERTH_UINT8, bytes, (int64_t)TENSOR_NBYTES));
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
    free(bytes);
    findings =
        mmap(NULL, sizeof *findings, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq((void *)findings, MAP_FAILED);
    cr_assert_eq(berth_config_set("load.mmap", "off", NULL, &error), 0);
}

static void tear_down(void)
{
    if (folder)
        end_scene();
}

/* ---- the cases ---- */

static const struct filling {
    const char *what;
    void (*fill)(void);
    bool is_refused;
} fillings[] = {
    {"names of files", fill_with_names, false},
    {"dirty file pages", fill_with_dirty_pages, false},
    {"memory of the program", fill_with_memory, true},
    {"memory of tmpfs", fill_with_tmpfs, true},
    {"file pages that are locked", fill_with_locked_pages, true},
};

static void expect_load(const struct filling *filling)
{
    static const char sentence[] = "not enough memory: of 100663296 bytes needed, ";

    memset(findings, 0, sizeof *findings);
    cr_assert(make_group(version));
    int signal = run_in_group(filling->fill);
    cr_expect_eq(rmdir(group), 0);
    cr_expect_eq(signal, 0, "%s: ended by signal %d", filling->what, signal);
    if (signal == 0 && !findings->is_filled)
        fprintf(stderr, "%s: they do not fill a group here\n", filling->what);
    if (signal != 0 || !findings->is_filled)
        return;
    if (!filling->is_refused) {
        cr_expect_eq(findings->code, 0, "%s: %s", filling->what, findings->error.message);
        cr_expect(findings->has_elements, "%s", filling->what);
        return;
    }
    cr_expect_eq(findings->code, BERTH_E_MEMORY, "%s: %d", filling->what, findings->code);
    cr_expect_not_null(strstr(findings->error.message, sentence), "%s: %s", filling->what,
                       findings->error.message);
}

Test(memory_group, that_is_full_refuses_only_what_cannot_fit_X15, .init = set_up, .fini = tear_down)
{
    for (size_t i = 0; i < sizeof fillings / sizeof fillings[0]; i++)
        expect_load(&fillings[i]);
}
