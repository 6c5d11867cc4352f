/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What tests of every folder share. Anything that a test cannot go on without ends the process with
 * a sentence, unless it says otherwise: programs with a main of their own use this, too. Memory
 * handed out is malloc's: the caller frees it.
 */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

#include <berth.h>
#include <berth/more.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- memory, seen through the allocator hook ---- */

struct test_memory {
    uint64_t n_allocations;  /* asked for since the watch began, refused ones too */
    uint64_t live_nbytes;    /* held now: 0 when nothing leaks */
    uint64_t peak_nbytes;    /* most held at one time */
    uint64_t largest_nbytes; /* largest single request */
};

/* Begins to count from zero. All that was allocated before must have been freed. */
void test_memory_watch(void);
/* Refuses the nth allocation from now on (1: the next); with for_ever all after it, too. */
void test_memory_refuse(uint64_t nth, bool for_ever);
/* Whether the one that is to be refused was asked for. */
bool test_memory_refused(void);
struct test_memory test_memory_seen(void);
/* The C library's allocator again. */
void test_memory_unwatch(void);

/*
 * for (struct test_refusals each = {0}; test_refuse_next(&each);): what follows is done again and
 * again, under a watch; its first allocation is refused, its second one, and so on until none is.
 * Each time nothing may leak. At the end `nth` is one more than there are.
 */
struct test_refusals {
    uint64_t nth;
    bool for_ever; /* all behind it, too */
};
bool test_refuse_next(struct test_refusals *each);

/* ---- values ---- */

/* A tensor over these elements, which stay the caller's. */
berth_value *test_tensor(berth_tree *tree, berth_dtype dtype, const void *data, int32_t rank,
                         const int64_t *shape);
/* The same of one dimension. */
berth_value *test_vector(berth_tree *tree, berth_dtype dtype, const void *data, int64_t n);

/* ---- processes ---- */

/* Runs `try` in a child. Fails the test (by Criterion) unless it returns 0. */
void test_in_child(int (*try)(void));

/* ---- files ---- */

/* A new folder of its own under TMPDIR or /tmp. */
char *test_folder_new(void);
/* Removes it and all that is in it, and frees the name. */
void test_folder_remove(char *folder);
/* "folder/name". */
char *test_path(const char *folder, const char *name);
/* How many entries a folder has: finds what was left behind. */
size_t test_folder_count(const char *folder);
/* A whole file, with a NUL behind it that *nbytes does not count. */
uint8_t *test_read_file(const char *path, size_t *nbytes);
void test_write_file(const char *path, const void *bytes, size_t nbytes);
/* Whether the file has just these bytes. */
bool test_file_holds(const char *path, const void *bytes, size_t nbytes);
/* In the place of the ioctl FICLONERANGE, whole blocks of 4096: the blocks are copied, not shared.
 */
int test_clone_by_copying(int fd, unsigned long request, void *argument);

/* Whether the long form of the tests is wanted (BERTH_LONG). */
bool test_is_long(void);

/* ---- sources, targets, contents, jobs: in one line ---- */

#define TO_PATH(path) ((const berth_target[]){berth_to_path(path)})
#define FROM_PATH(path) ((const berth_source[]){berth_from_path(path)})
#define FROM_FD(fd) ((const berth_source[]){berth_from_fd(fd)})
#define FROM_MEMORY(bytes, nbytes) ((const berth_source[]){berth_from_memory(bytes, nbytes)})
#define TO_FD(fd) ((const berth_target[]){berth_to_fd(fd)})
#define TO_MEMORY(bytes, nbytes) ((const berth_target[]){berth_to_memory(bytes, nbytes)})
#define TO_SINK(sink) ((const berth_target[]){berth_to_sink(sink)})
#define OF_VALUE(value) ((const berth_content[]){berth_of_value(value)})
#define OF_RECORDS(records, n, flags) ((const berth_content[]){berth_of_records(records, n, flags)})
/* A file of any format. */
#define OF_BYTES(bytes, n)                                                                         \
    OF_RECORDS(((const berth_new_record[]){{.name = "bytes", .nbytes = n, .data = bytes}}), 1,     \
               BERTH_RECORDS_PLAIN)
#define JOB_IS(job, event) (berth_job_wait(job, event, 0, NULL) != BERTH_E_TIMEOUT)
#define NAMED(name) (&(const berth_params){.archive_name = name})

/* The call succeeds, or the test ends with the sentence in `error`. */
#define assert_ok(call) cr_assert_eq(call, 0, "%s", error.message)

/* The call fails with this code, and `error` has just this sentence; or has it in its own. */
#define FAILS(call, code, sentence)                                                                \
    do {                                                                                           \
        cr_expect_eq(call, code, "%s", error.message);                                             \
        cr_expect_str_eq(error.message, sentence);                                                 \
    } while (0)
#define FAILS_SAYING(call, code, part)                                                             \
    do {                                                                                           \
        cr_expect_eq(call, code, "%s", error.message);                                             \
        cr_expect(strstr(error.message, part), "%s, without: %s", error.message, part);            \
    } while (0)
/* And the next call begins without an error, as the functions of the rooms want it. */
#define FAILS_ONCE(call, code, sentence)                                                           \
    do {                                                                                           \
        FAILS(call, code, sentence);                                                               \
        error = (berth_error){0};                                                                  \
    } while (0)

/* Ends the process. */
_Noreturn void test_give_up(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
