/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * W7: many processes save to one path, some of them killed on the way. Who reads finds a whole file
 * of one of them, every time; no save fails; in the end nothing else is left.
 */
#include <berth/config.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/support/faults/save_scene.h"

enum { MAX_WRITERS = 8 };

TestSuite(writers, .init = begin_faults, .fini = end_faults, .timeout = 3000);

static const char *const options[] = {
    "save.durability=none io.threads=1",
    "save.durability=full io.threads=1 save.method=buffered",
    "save.durability=none io.threads=3 io.chunk_nbytes=4096",
    "save.durability=file io.threads=1 save.method=direct",
};

static struct {
    uint8_t *bytes;
    size_t nbytes;
} images[MAX_WRITERS];

/* Each has bytes, sizes and ways of its own. */
static int save_as(unsigned writer, const char *to, berth_error *error)
{
    bytes[0] = (uint8_t)writer;
    return save_some(to, N_BYTES + 1000 * writer, error);
}

static void make_images(unsigned n_writers)
{
    berth_error error;

    for (unsigned i = 0; i < n_writers; i++) {
        cr_assert_eq(save_as(i, path, &error), 0, "%s", error.message);
        images[i].bytes = test_read_file(path, &images[i].nbytes);
    }
}

static void free_images(void)
{
    for (unsigned i = 0; i < MAX_WRITERS; i++)
        free(images[i].bytes);
}

static bool is_image(void)
{
    size_t nbytes;
    uint8_t *file = test_read_file(path, &nbytes);
    bool found = false;

    for (unsigned i = 0; i < MAX_WRITERS && !found; i++)
        found = nbytes == images[i].nbytes && memcmp(file, images[i].bytes, nbytes) == 0;
    free(file);
    return found;
}

/* A process: some saves, or saves until it is killed. */
static pid_t start(unsigned writer, unsigned n_saves)
{
    pid_t child = fork();

    if (child != 0)
        return child;
    berth_error error;
    if (berth_config_patch(options[writer % 4], &error) < 0)
        _exit(3);
    for (unsigned i = 0; n_saves == 0 || i < n_saves; i++)
        if (save_as(writer, writer % 3 == 0 ? link_path : path, &error) < 0) {
            fprintf(stderr, "writer %u: %s\n", writer, error.message);
            _exit(2);
        }
    _exit(0);
}

/* Lets it live for up to 8 ms. */
static unsigned kill_one(unsigned writer, unsigned n)
{
    pid_t child = start(writer, 0);
    int status;

    nanosleep(&(struct timespec){.tv_nsec = (long)(n * 7919 % 8000) * 1000}, NULL);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status), "the killed writer ended with %x", (unsigned)status);
    return 1;
}

/* W4, W7 */
Test(writers, on_one_path_each_make_a_whole_file)
{
    unsigned n_writers = test_is_long() ? 8 : 4, n_saves = test_is_long() ? 1000 : 200;
    unsigned n_killed = 0, n_read = 0, n_left = n_writers;
    pid_t children[MAX_WRITERS];
    berth_error error;

    make_images(n_writers);
    for (unsigned i = 0; i < n_writers; i++)
        children[i] = start(i, n_saves);
    while (n_left > 0 || n_read < 100) {
        int status;
        cr_assert(is_image(), "a reader found none of the files");
        cr_assert_eq(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error), 0, "%s",
                     error.message);
        n_read++;
        if (n_read % 4 == 0)
            n_killed += kill_one(n_read % n_writers, n_read);
        for (unsigned i = 0; i < n_writers; i++)
            if (children[i] > 0 && waitpid(children[i], &status, WNOHANG) == children[i]) {
                cr_assert_eq(status, 0, "writer %u ended with %x", i, (unsigned)status);
                children[i] = 0;
                n_left--;
            }
    }
    cr_assert_eq(save_as(0, path, &error), 0, "%s", error.message);
    /* X5: a save removes what is dead; where the kill came before its owner stood there, nobody
     * knows. Hardly any. */
    cr_assert_leq(test_folder_count(folder), 2 + n_killed / 4, "saves leave what others left");
    clean_folder();
    cr_assert_eq(test_folder_count(folder), 2, "more than the target and the link");
    printf("reads of a whole file: %u, writers killed: %u\n", n_read, n_killed);
    check_points(4, n_killed, 25);
    check_points(7, n_writers * n_saves + n_read, n_writers * n_saves + 100);
    free_images();
}
