/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W11: file systems that cannot do everything, and saves in place. Stand-ins in the table of system
 * calls give a folder the habits of the mounts of object stores. tests/faults/mounts.py does the
 * same with a real file system.
 */
#include <berth/config.h>
#include <berth/joint.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "io/syscalls.h"
#include "tests/support/faults/inject.h"
#include "tests/support/save/records.h"

#define OLD "the old file"
#define DATA_NBYTES 700000 /* several tiles of 64 KiB */
#define FUSE_MAGIC 0x65735546

static char *folder, *path;
static uint8_t *bytes, *expected;
static size_t expected_nbytes;
static char logged[1000];

/* ---- habits ---- */

/* What a call gives instead of being done; 0: it is done. */
static struct habits {
    int size;     /* fallocate, ftruncate */
    int order;    /* a write that is not at the end */
    int rename;   /* any */
    int over;     /* a rename over a file */
    int sync;     /* of a file */
    int folder;   /* fsync of a folder */
    int unlink;   /* of an open file */
    int hidden;   /* making a file whose name begins with a dot */
    bool is_disk; /* the file system says that it is no mount of an object store */
} has;

static int refuse(int with)
{
    errno = with;
    return -1;
}

static int as_fuse(int fd, struct statfs *status)
{
    int result = fstatfs(fd, status);

    if (!has.is_disk)
        status->f_type = FUSE_MAGIC;
    return result;
}

static int no_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    return has.size || !has.is_disk ? refuse(has.size ? has.size : EOPNOTSUPP)
                                    : fallocate(fd, mode, offset, nbytes);
}

static int no_ftruncate(int fd, off_t nbytes)
{
    return has.size && nbytes > 0 ? refuse(has.size) : ftruncate(fd, nbytes);
}

static bool is_at_end(int fd, off_t offset)
{
    struct stat status;

    return !has.order || (fstat(fd, &status) == 0 && status.st_size == offset);
}

static ssize_t pwrite_in_order(int fd, const void *from, size_t nbytes, off_t offset)
{
    return is_at_end(fd, offset) ? pwrite(fd, from, nbytes, offset) : refuse(has.order);
}

static ssize_t pwritev_in_order(int fd, const struct iovec *pieces, int n, off_t offset)
{
    return is_at_end(fd, offset) ? pwritev(fd, pieces, n, offset) : refuse(has.order);
}

static int no_renameat(int from_folder, const char *from, int to_folder, const char *to)
{
    if (has.rename || (has.over && faccessat(to_folder, to, F_OK, 0) == 0))
        return refuse(has.rename ? has.rename : has.over);
    return renameat(from_folder, from, to_folder, to);
}

static int no_fsync(int fd)
{
    struct stat status;
    bool is_folder = fstat(fd, &status) == 0 && S_ISDIR(status.st_mode);
    int with = is_folder ? has.folder : has.sync;

    return with ? refuse(with) : 0;
}

static int no_fdatasync(int fd)
{
    return has.sync ? refuse(has.sync) : fdatasync(fd);
}

static int no_unlinkat(int in, const char *name, int flags)
{
    struct stat named, open;
    bool is_open = false;

    for (int fd = 3; fd < 100 && has.unlink; fd++)
        is_open |= (fcntl(fd, F_GETFL) & O_PATH) == 0 && fstat(fd, &open) == 0 &&
                   fstatat(in, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                   open.st_ino == named.st_ino && open.st_dev == named.st_dev;
    return is_open ? refuse(has.unlink) : unlinkat(in, name, flags);
}

static int no_hidden(int in, const char *name, int flags, mode_t mode)
{
    return has.hidden && (flags & O_CREAT) && name[0] == '.' ? refuse(has.hidden)
                                                             : openat(in, name, flags, mode);
}

static void set_habits(const struct habits *habits)
{
    has = *habits;
    bth_system.fstatfs = as_fuse;
    bth_system.fallocate = no_fallocate;
    bth_system.ftruncate = no_ftruncate;
    bth_system.pwrite = pwrite_in_order;
    bth_system.pwritev = pwritev_in_order;
    bth_system.renameat = no_renameat;
    bth_system.fsync = no_fsync;
    bth_system.fdatasync = no_fdatasync;
    bth_system.unlinkat = no_unlinkat;
    bth_system.openat = no_hidden;
}

/* Every habit, with each errno that such file systems give. */
static const struct {
    const char *name;
    struct habits habits;
} kinds[] = {
    {"no size, ENOSYS", {.size = ENOSYS}},
    {"no size, EOPNOTSUPP", {.size = EOPNOTSUPP}},
    {"no size, EINVAL", {.size = EINVAL}},
    {"no size, EPERM", {.size = EPERM}},
    {"in order, EOPNOTSUPP", {.order = EOPNOTSUPP}},
    {"in order, EINVAL", {.order = EINVAL}},
    {"no rename, ENOSYS", {.rename = ENOSYS}},
    {"no rename, EPERM", {.rename = EPERM}},
    {"no rename, EOPNOTSUPP", {.rename = EOPNOTSUPP}},
    {"no rename, EINVAL", {.rename = EINVAL}},
    {"no rename over a file", {.over = EEXIST}},
    {"no fsync, EINVAL", {.sync = EINVAL}},
    {"no fsync, EOPNOTSUPP", {.sync = EOPNOTSUPP}},
    {"no fsync, ENOSYS", {.sync = ENOSYS}},
    {"no fsync of a folder, EINVAL", {.folder = EINVAL}},
    {"no fsync of a folder, EOPNOTSUPP", {.folder = EOPNOTSUPP}},
    {"no fsync of a folder, ENOSYS", {.folder = ENOSYS}},
    {"no unlink of an open file, EPERM", {.unlink = EPERM}},
    {"no unlink of an open file, EBUSY", {.unlink = EBUSY}},
    {"no hidden files", {.hidden = EPERM}},
};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static struct habits join(const struct habits *a, const struct habits *b)
{
    return (struct habits){.size = a->size ? a->size : b->size,
                           .order = a->order ? a->order : b->order,
                           .rename = a->rename ? a->rename : b->rename,
                           .over = a->over ? a->over : b->over,
                           .sync = a->sync ? a->sync : b->sync,
                           .folder = a->folder ? a->folder : b->folder,
                           .unlink = a->unlink ? a->unlink : b->unlink,
                           .hidden = a->hidden ? a->hidden : b->hidden};
}

/* ---- a save ---- */

static void keep_log(void *context, const char *message)
{
    (void)context;
    snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", message);
}

static int save(const char *to, const char *options, berth_stats *stats, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = DATA_NBYTES, .data = bytes},
                                        {.name = "data/1", .nbytes = 100, .data = bytes}};
    const berth_content content = berth_of_records(records, 3, 0);
    const berth_params params = {.archive_name = "archive", .stats = stats};
    const berth_target target = berth_to_path(to);

    logged[0] = '\0';
    cr_assert_eq(berth_config_patch(options, NULL), 0);
    int status = berth_save_to(&target, &content, &params, error);
    berth_config_unpatch(NULL);
    return status;
}

static void set_up(void)
{
    const char *usual = "io.threads=4 io.chunk_nbytes=64KiB";
    berth_error error;

    folder = test_folder_new();
    path = test_path(folder, "model.pt");
    bytes = sample_bytes(DATA_NBYTES);
    cr_assert_eq(save(path, usual, NULL, &error), 0, "%s", error.message);
    expected = test_read_file(path, &expected_nbytes);
    cr_assert_eq(unlink(path), 0);
    berth_set_log(keep_log, NULL);
}

static void tear_down(void)
{
    bth_system_restore();
    berth_set_log(NULL, NULL);
    test_folder_remove(folder);
    free(path), free(bytes), free(expected);
}

TestSuite(in_place, .init = set_up, .fini = tear_down);

/* ---- every habit and every pair ---- */

/* What a save must do here, by the rules of save.replace. */
static void check_save(const char *name, const struct habits *habits, bool is_old,
                       const char *replace)
{
    bool has_rename = !habits->rename && !habits->over && !habits->hidden;
    bool in_place = strcmp(replace, "in_place") == 0;
    bool fails = !in_place && !has_rename && (is_old || strcmp(replace, "always") == 0);
    bool is_renamed = !in_place && has_rename;
    char options[100];
    berth_stats stats = {0};
    berth_error error;

    snprintf(options, sizeof options, "io.threads=4 io.chunk_nbytes=64KiB save.replace=%s",
             replace);
    (void)unlink(path);
    if (is_old)
        test_write_file(path, OLD, strlen(OLD));
    set_habits(habits);
    int status = save(path, options, &stats, &error);
    bth_system_restore();
    if (fails) {
        cr_assert_eq(status, is_old ? BERTH_E_REPLACE : BERTH_E_SYSTEM, "%s: %s", name,
                     error.message);
        cr_assert(strstr(error.message, is_old ? "save.replace=in_place" : "save.replace=auto"),
                  "%s", error.message);
        cr_assert_eq(test_folder_count(folder), is_old);
        cr_assert(!is_old || test_file_holds(path, OLD, strlen(OLD)), "%s", name);
        return;
    }
    cr_assert_eq(status, 0, "%s, %s: %s", name, replace, error.message);
    cr_assert(test_file_holds(path, expected, expected_nbytes), "%s, %s", name, replace);
    cr_assert_eq(test_folder_count(folder), 1, "%s: something is left behind", name);
    cr_assert_str_eq(stats.placed, is_renamed ? "renamed" : "in place", "%s", name);
    cr_assert_str_eq(stats.durability,
                     habits->sync                                ? "none"
                     : habits->folder && (is_renamed || !is_old) ? "file"
                                                                 : "full",
                     "%s", name);
    cr_assert_eq(strstr(logged, "cannot sync files") != NULL, habits->sync != 0, "%s", logged);
    cr_assert_eq(strstr(logged, "is written in place: ") != NULL, !in_place && !has_rename, "%s",
                 logged);
}

Test(in_place, every_habit_and_every_pair)
{
    static const char *const replaces[] = {"auto", "always", "in_place"};

    for (size_t i = 0; i < N_KINDS; i++)
        for (size_t k = i; k < N_KINDS; k++) {
            struct habits both = join(&kinds[i].habits, &kinds[k].habits);
            char name[100];
            snprintf(name, sizeof name, "%s; %s", kinds[i].name, kinds[k].name);
            for (size_t r = 0; r < 3; r++)
                for (int is_old = 0; is_old < 2; is_old++)
                    check_save(name, &both, is_old, replaces[r]);
        }
}

/* A disk that says nothing of order: its last rename decides, and the message names the way. */
Test(in_place, a_rename_that_fails_late_names_the_other_way)
{
    const struct habits habits = {.rename = EPERM, .is_disk = true};
    berth_error error;

    test_write_file(path, OLD, strlen(OLD));
    set_habits(&habits);
    cr_assert_eq(save(path, "", NULL, &error), BERTH_E_SYSTEM);
    cr_assert(strstr(error.message, ": cannot be replaced: Operation not permitted; "
                                    "save.replace=in_place can write it in place"),
              "%s", error.message);
    cr_assert(test_file_holds(path, OLD, strlen(OLD)));
    cr_assert_eq(test_folder_count(folder), 1);
}

/* ---- failures ---- */

static unsigned n_writes_left;

static ssize_t write_then_fail(int fd, const void *from, size_t nbytes)
{
    if (n_writes_left == 0)
        return refuse(EIO);
    n_writes_left--;
    return write(fd, from, nbytes);
}

/* A new file goes; of an old one the loss is told, and what is there ends too early. */
Test(in_place, a_failure_removes_a_new_file_and_tells_of_an_old_one)
{
    const struct habits habits = {.rename = ENOSYS, .unlink = EPERM};
    berth_checkpoint *checkpoint = NULL;
    berth_error error;

    for (unsigned n = 0; n < 12; n++) {
        set_habits(&habits);
        bth_system.write = write_then_fail;
        n_writes_left = n;
        cr_assert_eq(save(path, "io.chunk_nbytes=64KiB", NULL, &error), BERTH_E_SYSTEM);
        cr_assert_null(strstr(error.message, "old content"), "%s", error.message);
        cr_assert_eq(test_folder_count(folder), 0, "after %u writes", n);
        test_write_file(path, OLD, strlen(OLD));
        n_writes_left = n;
        cr_assert_eq(save(path, "io.chunk_nbytes=64KiB save.replace=in_place", NULL, &error),
                     BERTH_E_SYSTEM);
        cr_assert(strstr(error.message, "; its old content is lost, because it was written in "
                                        "place"),
                  "%s", error.message);
        bth_system_restore();
        cr_assert_eq(test_folder_count(folder), 1);
        cr_assert_neq(berth_open(path, NULL, &checkpoint, &error), 0);
        cr_assert_eq(unlink(path), 0);
    }
}

/* Each call fails once, at its first time, its second, ...: the file is whole, or there is none. */
Test(in_place, a_new_file_is_whole_or_gone_whatever_call_fails)
{
    static const enum fault_row rows[] = {
        FAULT_open,  FAULT_openat,    FAULT_close,     FAULT_dup,      FAULT_write,
        FAULT_fstat, FAULT_fstatat,   FAULT_statx,     FAULT_fstatvfs, FAULT_faccessat,
        FAULT_fsync, FAULT_getrandom, FAULT_readlinkat};
    const struct habits habits = {.rename = ENOSYS, .order = EOPNOTSUPP};
    unsigned n_failed = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        bool is_hit = true;
        for (unsigned nth = 1; is_hit; nth++) {
            berth_error error;
            fault_set(rows[i], nth, EIO, false);
            has = habits;
            bth_system.renameat = no_renameat;
            bth_system.fstatfs = as_fuse;
            int status = save(path, "io.chunk_nbytes=64KiB", NULL, &error);
            is_hit = atomic_load(&fault.n_hits) > 0;
            fault_clear();
            n_failed += status < 0;
            bool is_there = access(path, F_OK) == 0;
            cr_assert_eq(is_there, status == 0 || status == BERTH_E_NOT_DURABLE, "%s %u: %s",
                         fault_row_names[rows[i]], nth, error.message);
            cr_assert(!is_there || test_file_holds(path, expected, expected_nbytes));
            cr_assert_eq(test_folder_count(folder), is_there, "%s %u: something is left behind",
                         fault_row_names[rows[i]], nth);
            (void)unlink(path);
        }
    }
    cr_assert_gt(n_failed, 20);
}

static unsigned n_hidden;

static int second_hidden_fails(int in, const char *name, int flags, mode_t mode)
{
    return (flags & O_CREAT) && name[0] == '.' && ++n_hidden == 2 ? refuse(EMFILE)
                                                                  : openat(in, name, flags, mode);
}

/* Where a rename is tried first, with a second temporary. */
Test(in_place, a_second_temporary_that_cannot_be_made_is_told)
{
    berth_error error;

    bth_system.fstatfs = as_fuse;
    bth_system.openat = second_hidden_fails;
    cr_expect_eq(save(path, "", NULL, &error), BERTH_E_SYSTEM);
    bth_system_restore();
    cr_expect_eq(error.system_errno, EMFILE);
    cr_expect(strstr(error.message, "no temporary file can be created"), "%s", error.message);
    cr_expect_eq(test_folder_count(folder), 0);
}

/* A disk that is too small is told before the old content is lost. */
static int statvfs_of_full_disk(int fd, struct statvfs *status)
{
    int result = fstatvfs(fd, status);

    status->f_bavail = 0;
    return result;
}

Test(in_place, a_disk_that_is_too_small_keeps_the_old_content)
{
    berth_error error;

    test_write_file(path, OLD, strlen(OLD));
    bth_system.fstatvfs = statvfs_of_full_disk;
    cr_assert_eq(save(path, "save.replace=in_place", NULL, &error), BERTH_E_NO_SPACE);
    bth_system_restore();
    cr_assert(test_file_holds(path, OLD, strlen(OLD)));
}

/* F3 */
Test(in_place, a_file_that_this_process_maps_is_not_overwritten)
{
    berth_checkpoint *checkpoint;
    berth_error error;
    berth_stats stats;
    const float elements[] = {1, 2, 3};
    berth_tree *tree = berth_tree_new(&error);
    berth_value *dict = berth_make_dict(tree, BERTH_KIND_DICT);
    char *link_path = test_path(folder, "link.pt");

    (void)berth_dict_set(dict, "w", test_vector(tree, BERTH_FLOAT32, elements, 3));
    cr_assert_eq(berth_save(path, dict, NULL, &error), 0, "%s", error.message);
    cr_assert_eq(symlink("model.pt", link_path), 0);
    const berth_params mapped = {.stats = &stats};
    cr_assert_eq(berth_config_patch("load.method=map", NULL), 0);
    cr_assert_eq(berth_open(path, &mapped, &checkpoint, &error), 0, "%s", error.message);
    const berth_tensor *tensor = berth_find_tensor(checkpoint, "w", &error);
    cr_assert(berth_tensor_data(checkpoint, tensor, &error), "%s", error.message);
    berth_config_unpatch(NULL);
    cr_assert_eq(save(link_path, "save.replace=in_place", NULL, &error), BERTH_E_SYSTEM);
    cr_assert(strstr(error.message, "this process has a map of it"), "%s", error.message);
    berth_close(checkpoint);
    cr_assert_eq(save(link_path, "save.replace=in_place", NULL, &error), 0, "%s", error.message);
    cr_assert(test_file_holds(path, expected, expected_nbytes));
    berth_tree_free(tree);
    free(link_path);
}

/* ---- races ---- */

static char *victim;
static int flags_of_race;

/* Another user puts a link in the file's place right before it is opened. */
static int openat_and_link(int in, const char *name, int flags, mode_t mode)
{
    if (strcmp(name, "model.pt") == 0 && (flags & flags_of_race) == flags_of_race) {
        (void)unlinkat(in, name, 0);
        (void)symlinkat(victim, in, name);
    }
    return openat(in, name, flags, mode);
}

Test(in_place, a_link_that_appears_is_not_followed)
{
    const struct habits habits = {.rename = ENOSYS};
    berth_error error;

    victim = test_path(folder, "victim");
    test_write_file(victim, OLD, strlen(OLD));
    for (int is_old = 0; is_old < 2; is_old++) {
        (void)unlink(path);
        if (is_old)
            test_write_file(path, "old", 3);
        set_habits(&habits);
        bth_system.openat = openat_and_link;
        flags_of_race = is_old ? O_PATH : O_CREAT;
        cr_assert_eq(save(path, is_old ? "save.replace=in_place" : "", NULL, &error),
                     BERTH_E_SYSTEM, "%s", error.message);
        bth_system_restore();
        cr_assert(test_file_holds(victim, OLD, strlen(OLD)), "%s", error.message);
        cr_assert_eq(test_folder_count(folder), 2);
    }
    free(victim);
}

/* ---- what is no regular file, and what has several names ---- */

static int n_busy; /* so often a removal fails */

static int busy_unlinkat(int in, const char *name, int flags)
{
    errno = EBUSY;
    return n_busy-- > 0 ? -1 : unlinkat(in, name, flags);
}

/* A removal is tried again, for 85 ms. */
Test(in_place, a_temporary_that_cannot_be_removed_at_once)
{
    const struct habits habits = {.rename = EIO};
    berth_error error;

    for (int n = 4; n <= 5; n++) {
        set_habits(&habits);
        bth_system.unlinkat = busy_unlinkat;
        n_busy = n;
        cr_expect_eq(save(path, "", NULL, &error), BERTH_E_SYSTEM, "%s", error.message);
        bth_system_restore();
        cr_expect_eq(test_folder_count(folder), n == 5, "%d", n);
    }
}

static void *read_pipe(void *from)
{
    static uint8_t got[DATA_NBYTES + 4096];
    int fd = open(from, O_RDONLY | O_CLOEXEC);
    size_t n = 0;

    for (ssize_t more; (more = read(fd, got + n, sizeof got - n)) > 0;)
        n += (size_t)more;
    close(fd);
    return n == expected_nbytes && memcmp(got, expected, n) == 0 ? got : NULL;
}

Test(in_place, a_pipe_gets_the_bytes)
{
    char *pipe_path = test_path(folder, "pipe"), *link_path = test_path(folder, "link");
    pthread_t reader;
    void *got;
    berth_error error;
    berth_stats stats = {0};

    cr_assert_eq(mkfifo(pipe_path, 0600), 0);
    cr_assert_eq(symlink("pipe", link_path), 0);
    cr_assert_eq(pthread_create(&reader, NULL, read_pipe, pipe_path), 0);
    cr_assert_eq(save(link_path, "save.replace=in_place", &stats, &error), 0, "%s", error.message);
    cr_assert_eq(pthread_join(reader, &got), 0);
    cr_assert(got);
    cr_assert_str_eq(stats.placed, "in place");
    cr_assert_null(stats.durability);
    cr_assert_eq(test_folder_count(folder), 2);
    free(pipe_path), free(link_path);
    /* The same of one that has no name. */
    char to[40], from[40];
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    (void)snprintf(to, sizeof to, "/proc/self/fd/%d", ends[1]);
    (void)snprintf(from, sizeof from, "/proc/self/fd/%d", ends[0]);
    cr_assert_eq(pthread_create(&reader, NULL, read_pipe, from), 0);
    cr_assert_eq(save(to, "save.replace=in_place", &stats, &error), 0, "%s", error.message);
    close(ends[1]);
    cr_assert_eq(pthread_join(reader, &got), 0);
    cr_assert(got);
    cr_assert_str_eq(stats.placed, "in place");
    close(ends[0]);
}

Test(in_place, devices_take_the_bytes_or_say_why)
{
    berth_error error;

    cr_assert_eq(save("/dev/null", "save.replace=in_place", NULL, &error), 0, "%s", error.message);
    cr_assert_eq(save("/dev/full", "save.replace=in_place", NULL, &error), BERTH_E_NO_SPACE);
    cr_assert_eq(save(folder, "save.replace=in_place", NULL, &error), BERTH_E_SYSTEM);
    cr_assert_str_empty(logged);
}

Test(in_place, a_hard_link_keeps_its_file)
{
    char *other = test_path(folder, "other.pt");
    struct stat before, after;
    berth_error error;

    test_write_file(path, OLD, strlen(OLD));
    cr_assert_eq(chmod(path, 0640), 0);
    cr_assert_eq(link(path, other), 0);
    cr_assert_eq(stat(path, &before), 0);
    cr_assert_eq(save(path, "save.replace=in_place", NULL, &error), 0, "%s", error.message);
    cr_assert_eq(stat(path, &after), 0);
    cr_assert(before.st_ino == after.st_ino && after.st_mode == before.st_mode);
    cr_assert(test_file_holds(other, expected, expected_nbytes));
    cr_assert_eq(save(path, "", NULL, &error), 0);
    cr_assert_eq(stat(path, &after), 0);
    cr_assert(before.st_ino != after.st_ino);
    free(other);
}

/* X4: a file without a name. What is refused keeps its bytes. */
static int no_ftruncate_at_all(int fd, off_t nbytes)
{
    (void)fd, (void)nbytes;
    return refuse(EROFS);
}

static int full_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    return refuse(ENOSPC);
}

Test(in_place, a_file_without_a_name_gets_the_bytes_or_keeps_its_own)
{
    static const struct {
        int seals;
        bool is_full, has_no_ftruncate;
        int status;
        const char *says;
    } cases[] = {
        {0, false, false, 0, ""},
        {F_SEAL_SEAL, false, false, 0, ""},
        {F_SEAL_WRITE, false, false, BERTH_E_SYSTEM, "is sealed, and cannot be written in place"},
        {F_SEAL_SHRINK, false, false, BERTH_E_SYSTEM, "is sealed, and cannot be written in place"},
        {F_SEAL_GROW, false, false, BERTH_E_SYSTEM, "is sealed, and cannot be written in place"},
        {F_SEAL_SEAL | F_SEAL_GROW, false, false, BERTH_E_SYSTEM, "is sealed"},
        {0, true, false, BERTH_E_NO_SPACE, ""},
        {0, false, true, BERTH_E_SYSTEM, "has no name, and cannot be written in place: Read-only"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[40];
        berth_error error;
        int fd = memfd_create("model", MFD_ALLOW_SEALING);
        cr_assert_geq(fd, 0);
        cr_assert_eq(write(fd, OLD, strlen(OLD)), (ssize_t)strlen(OLD));
        if (cases[i].seals)
            cr_assert_eq(fcntl(fd, F_ADD_SEALS, cases[i].seals), 0);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        if (cases[i].is_full)
            bth_system.fallocate = full_fallocate;
        if (cases[i].has_no_ftruncate)
            bth_system.ftruncate = no_ftruncate_at_all;
        cr_expect_eq(save(name, "", NULL, &error), cases[i].status, "%zu: %s", i, error.message);
        bth_system_restore();
        cr_expect(strstr(error.message, cases[i].says), "%zu: %s", i, error.message);
        if (cases[i].status == 0)
            cr_expect(test_file_holds(name, expected, expected_nbytes), "%zu", i);
        else if (!cases[i].has_no_ftruncate) /* which has room already, behind the old bytes */
            cr_expect(test_file_holds(name, OLD, strlen(OLD)), "%zu", i);
        close(fd);
    }
}

/* ---- what takes the file's name meanwhile ---- */

static enum {
    CANNOT_BE_OPENED,
    CANNOT_BE_EXAMINED,
    ANOTHER_FILE,
    ANOTHER_DEVICE,
    IS_REPLACED,
    NOT_WRITABLE
} change;

static int openat_and_change(int in, const char *name, int flags, mode_t mode)
{
    bool is_it = strcmp(name, "model.pt") == 0;

    if (is_it && flags & O_PATH && change == CANNOT_BE_OPENED)
        return refuse(EACCES);
    if (change == NOT_WRITABLE && (flags & O_ACCMODE) == O_RDWR && name[0] >= '0' && name[0] <= '9')
        return refuse(EACCES);
    if (is_it && flags & O_PATH && change == ANOTHER_FILE) {
        char *other = test_path(folder, "other.pt");
        test_write_file(other, "theirs", 6); /* while the old one is there: another inode */
        cr_assert_eq(rename(other, path), 0);
        free(other);
    }
    int fd = openat(in, name, flags, mode);
    if (is_it && flags & O_EXCL && change == IS_REPLACED)
        cr_assert_eq(unlink(path), 0);
    return fd;
}

static int fstat_of_no_path(int fd, struct stat *status)
{
    bool is_path = fcntl(fd, F_GETFL) & O_PATH;
    int result = is_path && change == CANNOT_BE_EXAMINED ? refuse(EIO) : fstat(fd, status);

    status->st_dev += is_path && change == ANOTHER_DEVICE;
    return result;
}

static void expect_refused_after(const char *to, const char *options, const char *says)
{
    berth_error error;

    bth_system.openat = openat_and_change;
    bth_system.fstat = fstat_of_no_path;
    cr_expect_lt(save(to, options, NULL, &error), 0, "%s", says);
    bth_system_restore();
    cr_expect(strstr(error.message, says), "%s: %s", says, error.message);
}

/* X1, X10 */
Test(in_place, what_takes_the_files_name_is_not_written_to)
{
    test_write_file(path, OLD, strlen(OLD));
    change = CANNOT_BE_OPENED;
    expect_refused_after(path, "save.replace=in_place", "cannot be opened: Permission denied");
    change = CANNOT_BE_EXAMINED;
    expect_refused_after(path, "save.replace=in_place", "cannot be opened: Input/output error");
    cr_expect(test_file_holds(path, OLD, strlen(OLD)));
    change = ANOTHER_DEVICE;
    expect_refused_after(path, "save.replace=in_place", "another file took its name");
    cr_expect(test_file_holds(path, OLD, strlen(OLD)));
    change = ANOTHER_FILE;
    expect_refused_after(path, "save.replace=in_place", "another file took its name");
    cr_expect(test_file_holds(path, "theirs", 6));
    cr_assert_eq(unlink(path), 0);
    change = IS_REPLACED;
    expect_refused_after(path, "save.replace=in_place",
                         "it, or the descriptor of it, was replaced");
}

/* X4 */
Test(in_place, descriptors_of_what_can_be_no_file_are_refused)
{
    char name[40], *other = test_path(folder, "other.pt");
    int ends[2];

    cr_assert_eq(pipe(ends), 0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", ends[1]);
    expect_refused_after(name, "", "cannot be replaced");
    close(ends[0]), close(ends[1]);
    /* It has a name, but not the one by which it was opened: that is another file's. */
    test_write_file(path, OLD, strlen(OLD));
    int fd = open(path, O_RDWR | O_CLOEXEC);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    cr_assert(link(path, other) == 0 && unlink(path) == 0);
    test_write_file(path, "theirs", 6);
    expect_refused_after(name, "", "is open under a name that another file has now");
    cr_expect(test_file_holds(path, "theirs", 6) && test_file_holds(other, OLD, strlen(OLD)));
    cr_assert_eq(unlink(other), 0); /* and now none */
    change = NOT_WRITABLE;
    expect_refused_after(name, "", "has no name, and cannot be written in place");
    cr_expect(test_file_holds(path, "theirs", 6));
    close(fd);
    free(other);
}

/* ---- files of other formats, and joint saves ---- */

Test(in_place, a_file_of_another_format)
{
    const struct habits kinds_here[] = {{.rename = ENOSYS}, {.order = EOPNOTSUPP}};

    for (size_t i = 0; i < 2; i++) {
        const berth_new_record parts[] = {{.name = "a", .nbytes = 2, .data = "ab"},
                                          {.name = "b", .nbytes = 2, .data = "cd"}};
        berth_error error;
        set_habits(&kinds_here[i]);
        cr_assert_eq(
            berth_save_to(TO_PATH(path), OF_RECORDS(parts, 2, BERTH_RECORDS_PLAIN), NULL, &error),
            0, "%s", error.message);
        bth_system_restore();
        cr_assert(test_file_holds(path, "abcd", 4));
        cr_assert_eq(unlink(path), 0);
    }
}

static void keep_line(void *context, const char *message)
{
    char *line = context;

    if (strncmp(message, "trace ", 6) == 0)
        snprintf(line, 512, "%s", message);
}

/* A trace cannot be written there; the save is, and the log says what helps. */
Test(in_place, a_trace_that_cannot_be_written_over_says_so)
{
    const struct habits order = {.order = EOPNOTSUPP};
    char trace[PATH_MAX], options[PATH_MAX + 16], line[512] = "";
    berth_stats stats = {0};
    berth_error error;

    snprintf(trace, sizeof trace, "%s/trace.json", folder);
    snprintf(options, sizeof options, "trace=%s", trace);
    berth_set_log(keep_line, line);
    set_habits(&order);
    int status = save(path, options, &stats, &error);
    bth_system_restore();
    berth_set_log(NULL, NULL);
    cr_assert_eq(status, 0, "%s", error.message);
    cr_expect(strstr(line, "its file system may take bytes in order only, and a trace is written "
                           "over its own end: choose a path elsewhere"),
              "%s", line);
    cr_assert_eq(unlink(trace), 0);
}

/* Several processes cannot write in order: that is told before a byte is written. */
Test(in_place, a_joint_save_is_refused_where_it_cannot_work)
{
    static const struct {
        struct habits habits;
        const char *options, *message;
    } rows[] = {
        {{.order = EOPNOTSUPP}, "", "takes bytes in order only"},
        {{.order = EINVAL, .size = ENOSYS}, "", "takes bytes in order only"},
        {{.order = EIO, .size = ENOSYS}, "", "bytes not written: Input/output error"},
        {{.size = ENOSYS}, "", NULL}, /* it can */
        {{.rename = ENOSYS}, "", "cannot rename files"},
        {{.over = EEXIST}, "", "its file system cannot replace a file by a rename: File exists"},
        {{.is_disk = true}, "save.replace=in_place", "save.replace must be auto or always"},
    };
    berth_error error;
    berth_tree *tree = berth_tree_new(&error);
    berth_value *value = berth_make_dict(tree, BERTH_KIND_DICT);

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        berth_joint *joint;
        set_habits(&rows[i].habits);
        cr_assert_eq(berth_config_patch(rows[i].options, NULL), 0);
        int code = berth_joint_begin(path, value, 1, NULL, &joint, NULL, &error);
        berth_config_unpatch(NULL);
        cr_assert_eq(code == 0, !rows[i].message, "%zu: %s", i, error.message);
        berth_joint_abort(joint);
        bth_system_restore();
        const char *end = rows[i].message ? strstr(error.message, rows[i].message) : "";
        cr_assert(end, "%s", error.message);
        cr_assert(rows[i].habits.order != EIO || strcmp(end, rows[i].message) == 0, "%s", end);
        cr_assert_eq(test_folder_count(folder), 0);
    }
    berth_tree_free(tree);
}
