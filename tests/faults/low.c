/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * X10: in processes that have closed descriptors 0, 1 and 2, in all ways, while a thread goes on to
 * print: no descriptor of ours is a low one, every file is whole, and the numbers are closed again.
 */
#include <berth/config.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "io/syscalls.h"
#include "tests/support/faults/save_scene.h"

#define OPTIONS "io.threads=2 load.method=direct save.method=direct load.check=data"

static bth_system_table real;
static atomic_int lowest = 1000;
static atomic_uint n_opened;
static atomic_bool is_over;

static int note(int fd)
{
    int seen = lowest;

    while (fd >= 0 && fd < seen && !atomic_compare_exchange_weak(&lowest, &seen, fd))
        ;
    atomic_fetch_add(&n_opened, 1);
    return fd;
}

static int noted_open(const char *name, int flags, mode_t mode)
{
    return note(real.open(name, flags, mode));
}

static int noted_openat(int at, const char *name, int flags, mode_t mode)
{
    return note(real.openat(at, name, flags, mode));
}

static int noted_dup(int fd)
{
    return note(real.dup(fd));
}

static void *print_on(void *unused)
{
    while (!is_over)
        for (int fd = 0; fd < 3; fd++)
            (void)!write(fd, "the program's own output\n", 25);
    return unused;
}

static bool save_and_read(int closed)
{
    uint8_t copy[100];
    berth_checkpoint *checkpoint;
    berth_archive *archive;
    berth_record record;
    berth_error error;
    char *to = test_path(folder, closed == 7 ? "seven.pt" : "other.pt");

    bool good = save_values(to, &error) == 0 && save_by_job(path, 0, &error) == 0 &&
                berth_verify(FROM_PATH(to), NULL, NULL, NULL, NULL, &error) == 0 &&
                berth_open(to, NULL, &checkpoint, &error) == 0;
    if (!good)
        return false;
    const berth_tensor *bias = berth_find_tensor(checkpoint, "bias", NULL);
    const void *data = berth_tensor_data(checkpoint, bias, &error);
    good = data && memcmp(data, bytes, 100) == 0 &&
           berth_tensor_read(checkpoint, bias, 0, 100, copy, &error) == 0 &&
           memcmp(copy, bytes, 100) == 0 && berth_load(checkpoint, NULL, NULL, &error) == 0;
    berth_close(checkpoint);
    good = good && berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error) == 0;
    if (!good)
        return false;
    good = berth_archive_find(archive, "data/0", &record, &error) == 0 && record.nbytes == N_BYTES;
    berth_archive_close(archive);
    free(to);
    return good;
}

static void *save_beside(void *result)
{
    for (int i = 0; i < 5; i++)
        if (!save_and_read(7))
            *(bool *)result = false;
    return NULL;
}

/* Closes those of the bits; the others print to nowhere. */
static void close_low(int closed)
{
    int nowhere = open("/dev/null", O_RDWR | O_CLOEXEC);

    for (int fd = 0; fd < 3; fd++)
        if (closed & 1 << fd)
            (void)close(fd);
        else
            (void)dup2(nowhere, fd);
    (void)close(nowhere);
}

static void note_all(void)
{
    real = bth_system;
    bth_system.open = noted_open;
    bth_system.openat = noted_openat;
    bth_system.dup = noted_dup;
}

/* Exit codes, as nothing can be printed. */
_Noreturn static void live(int closed, bool is_beside)
{
    bool is_good = true, others = true;
    pthread_t printing, saving;

    close_low(closed);
    note_all();
    if (berth_config_patch(OPTIONS, NULL) < 0 ||
        pthread_create(&printing, NULL, print_on, NULL) != 0 ||
        (is_beside && pthread_create(&saving, NULL, save_beside, &others) != 0))
        _exit(10);
    for (int i = 0; i < 5 && is_good; i++)
        is_good = save_and_read(closed & 3);
    if (is_beside)
        (void)pthread_join(saving, NULL);
    is_over = true;
    (void)pthread_join(printing, NULL);
    for (int fd = 0; fd < 3; fd++)
        if ((fcntl(fd, F_GETFD) < 0) != (bool)(closed & 1 << fd))
            _exit(11);
    if (lowest < 3 || n_opened < 30)
        _exit(12);
    _exit(is_good && others ? 0 : 13);
}

static void try_closed(int closed, bool is_beside)
{
    int status;
    berth_error error;

    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        live(closed, is_beside);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "closed %d: ended with %x", closed, (unsigned)status);
    cr_assert_eq(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error), 0, "%s",
                 error.message);
}

TestSuite(low, .init = begin_faults, .fini = end_faults, .timeout = 600);

/* X10 */
Test(low, descriptors_are_never_ours_in_whatever_way_they_are_closed)
{
    for (int closed = 0; closed < 8; closed++)
        try_closed(closed, false);
}

Test(low, descriptors_are_never_ours_when_two_threads_open_at_once)
{
    for (int i = 0; i < 5; i++)
        for (int closed = 1; closed < 8; closed++)
            try_closed(closed, true);
}

/* X10, X11 */
Test(low, descriptors_that_a_child_inherits_are_given_back)
{
    int status;

    (void)fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        close_low(7);
        (void)bth_low_fds_fill();
        pid_t grandchild = fork();
        if (grandchild == 0)
            _exit(save_and_read(0) && fcntl(0, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0 ? 0 : 1);
        bool is_good =
            waitpid(grandchild, &status, 0) == grandchild && status == 0 && fcntl(1, F_GETFD) >= 0;
        bth_low_fds_release();
        _exit(is_good && fcntl(1, F_GETFD) < 0 ? 0 : 2);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert_eq(status, 0, "ended with %x", (unsigned)status);
}
