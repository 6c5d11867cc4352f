/* SPDX-License-Identifier: BSD-3-Clause */
/* The buffers between device and file. */
#include "io/device/staging_buffers.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/error.h"
#include "io/memory_region.h"
#include "io/syscalls.h"
#include "tests/simulated/simulated.h"
#include "tests/support/support.h"

#define PAGE BTH_LARGE_PAGE_NBYTES

static berth_error error;
static bth_device_handle *device, *other;
static char told[700];

static void keep_line(void *context, const char *message)
{
    (void)context;
    snprintf(told, sizeof told, "%s", message);
}

static void set_up(void)
{
    test_memory_watch();
    berth_set_log(keep_line, NULL);
    assert_ok(bth_device_open("simulated:0", &device, &error));
    assert_ok(bth_device_open("simulated:1", &other, &error));
}

static void tear_down(void)
{
    bth_system_restore();
    test_memory_unwatch();
}

TestSuite(staging, .init = set_up, .fini = tear_down);

/* At the end of each test, not behind it: what fails there fails no test. */
#define STAGING_TEST(name)                                                                         \
    static void name(void);                                                                        \
    Test(staging, name)                                                                            \
    {                                                                                              \
        name();                                                                                    \
        bth_system_restore();                                                                      \
        bth_simulated_set(NULL);                                                                   \
        cr_expect_eq(test_memory_seen().live_nbytes, 0, "what is kept is not the allocator's");    \
        bth_staging_free_kept();                                                                   \
        cr_expect_eq(bth_staging_kept_nbytes(), 0);                                                \
        cr_expect_eq(bth_simulated_seen().pinned_nbytes, 0);                                       \
    }                                                                                              \
    static void name(void)

static void open_ring(bth_device_handle *of, size_t nbytes, unsigned n, bth_staging *ring)
{
    const bth_staging_need need = {.buffer_nbytes = nbytes, .n_buffers = n, .is_pinned = true};

    assert_ok(bth_staging_open(of, &need, ring, &error));
}

static bth_memory_kind kind_of(const uint8_t *bytes)
{
    bth_memory_owner owner;

    assert_ok(bth_device_find_memory_owner(device, (uintptr_t)bytes, &owner, &error));
    return owner.kind;
}

STAGING_TEST(buffers_are_aligned_apart_and_pinned)
{
    bth_staging ring;
    bth_staging_buffer *buffers[3];

    open_ring(device, PAGE + 1, 3, &ring);
    cr_assert_eq(ring.n_buffers, 3);
    cr_expect_eq(ring.buffer_nbytes, 2 * PAGE);
    for (size_t i = 0; i < 3; i++) {
        buffers[i] = &ring.buffers[i];
        cr_expect_eq(buffers[i]->nbytes, 2 * PAGE);
        cr_expect_eq((uintptr_t)buffers[i]->bytes % PAGE, 0);
        cr_expect_eq(kind_of(buffers[i]->bytes), BTH_MEMORY_PINNED);
        cr_expect_eq(kind_of(buffers[i]->bytes + 2 * PAGE - 1), BTH_MEMORY_PINNED);
        memset(buffers[i]->bytes, (int)i, 2 * PAGE);
    }
    for (size_t i = 0; i < 3; i++) {
        cr_expect_eq(buffers[i]->bytes[0], i);
        cr_expect_eq(buffers[i]->bytes[2 * PAGE - 1], i);
    }
    bth_staging_close(&ring);
    cr_expect_null(ring.buffers);
    bth_staging_close(&ring);
}

STAGING_TEST(what_was_pinned_is_kept_for_the_next_ring)
{
    bth_staging ring;

    open_ring(device, PAGE, 3, &ring);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 3 * PAGE);
    open_ring(other, PAGE, 4, &ring); /* of the same kind: pinned for all */
    cr_expect_eq(bth_simulated_n_calls(BTH_SIMULATED_PIN), 4);
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 4 * PAGE);
    open_ring(device, PAGE, 1, &ring);
    cr_expect_eq(bth_simulated_n_calls(BTH_SIMULATED_PIN), 4);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 4 * PAGE);
    bth_staging_free_kept();
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
    cr_expect_eq(bth_simulated_seen().pinned_nbytes, 0);
}

STAGING_TEST(what_is_kept_of_another_size_is_given_back)
{
    bth_staging ring;

    open_ring(device, PAGE, 3, &ring);
    bth_staging_close(&ring);
    open_ring(device, 2 * PAGE, 2, &ring);
    cr_expect_eq(bth_simulated_seen().pinned_nbytes, 4 * PAGE);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 4 * PAGE);
}

STAGING_TEST(rings_that_are_open_at_once_share_nothing)
{
    bth_staging first, second;

    open_ring(device, PAGE, 2, &first);
    open_ring(device, PAGE, 2, &second);
    for (unsigned i = 0; i < 2; i++)
        memset(first.buffers[i].bytes, 1, PAGE);
    for (unsigned i = 0; i < 2; i++)
        memset(second.buffers[i].bytes, 2, PAGE);
    for (unsigned i = 0; i < 2; i++)
        cr_expect_eq(first.buffers[i].bytes[PAGE - 1], 1);
    bth_staging_close(&first);
    bth_staging_close(&second);
    cr_expect_eq(bth_staging_kept_nbytes(), 4 * PAGE);
}

STAGING_TEST(pageable_buffers_are_not_kept)
{
    static const bth_staging_need need = {.buffer_nbytes = PAGE, .n_buffers = 2};
    static const bth_staging_need wish = {.buffer_nbytes = 9, .n_buffers = 2, .is_pinned = true};
    bth_staging ring;

    assert_ok(bth_staging_open(device, &need, &ring, &error));
    cr_expect_not(ring.is_pinned);
    cr_expect_eq(kind_of(ring.buffers[0].bytes), BTH_MEMORY_PAGEABLE);
    bth_staging_close(&ring);
    assert_ok(bth_staging_open(NULL, &wish, &ring, &error));
    cr_expect_not(ring.is_pinned, "without a device nothing pins");
    memset(ring.buffers[0].bytes, 1, PAGE);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
}

STAGING_TEST(memory_that_cannot_be_registered_comes_from_the_driver)
{
    bth_staging ring;

    bth_simulated_set(&(bth_simulated_machine){.n_devices = 2,
                                               .memory_nbytes = UINT64_MAX,
                                               .pinned_nbytes = UINT64_MAX,
                                               .cannot_register = true});
    open_ring(device, PAGE, 2, &ring);
    cr_assert_eq(ring.n_buffers, 2);
    for (unsigned i = 0; i < 2; i++)
        cr_expect_eq(kind_of(ring.buffers[i].bytes), BTH_MEMORY_PINNED);
    bth_staging_close(&ring);
    cr_expect_eq(bth_staging_kept_nbytes(), 2 * PAGE);
}

/* ---- too little memory ---- */

STAGING_TEST(a_ring_shrinks_where_less_can_be_pinned)
{
    bth_staging ring;

    bth_simulated_fail(BTH_SIMULATED_PIN, 3, BTH_SIMULATED_FOR_EVER);
    open_ring(device, PAGE, 5, &ring);
    cr_expect_eq(ring.n_buffers, 2);
    cr_expect_str_eq(told, "2 staging buffers instead of 5: simulated:0: 2097152 bytes cannot be "
                           "pinned: out of memory (SIMULATED_OUT_OF_MEMORY)");
    cr_expect_eq(error.code, BERTH_OK);
    cr_expect_neq(ring.buffers[0].bytes, ring.buffers[1].bytes);
    bth_staging_close(&ring);
}

STAGING_TEST(without_one_buffer_there_is_an_error_with_its_bytes)
{
    static const bth_staging_need need = {
        .buffer_nbytes = 3 * PAGE, .n_buffers = 5, .is_pinned = true};
    bth_staging ring;

    bth_simulated_fail(BTH_SIMULATED_PIN, 1, BTH_SIMULATED_FOR_EVER);
    FAILS(bth_staging_open(device, &need, &ring, &error), BERTH_E_MEMORY,
          "simulated:0: 6291456 bytes cannot be pinned: out of memory (SIMULATED_OUT_OF_MEMORY)");
    cr_expect_null(ring.buffers);
    bth_staging_close(&ring);
}

STAGING_TEST(a_bound_of_memory_is_kept)
{
    bth_staging_need need = {.buffer_nbytes = PAGE,
                             .n_buffers = 5,
                             .max_nbytes = 3 * PAGE + PAGE / 2,
                             .is_pinned = true};
    bth_staging ring;

    assert_ok(bth_staging_open(device, &need, &ring, &error));
    cr_expect_eq(ring.n_buffers, 3);
    bth_staging_close(&ring);
    need.max_nbytes = PAGE - 1;
    FAILS(
        bth_staging_open(device, &need, &ring, &error), BERTH_E_MEMORY,
        "a staging buffer needs 2097152 bytes, io.memory_nbytes leaves 2097151 (1 bytes missing)");
}

STAGING_TEST(needs_that_make_no_sense_are_refused)
{
    static const bth_staging_need needs[] = {{.buffer_nbytes = 0, .n_buffers = 1},
                                             {.buffer_nbytes = SIZE_MAX, .n_buffers = 1},
                                             {.buffer_nbytes = 1, .n_buffers = 0},
                                             {.buffer_nbytes = 1, .n_buffers = 1025}};
    bth_staging ring;

    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        bth_error_clear(&error);
        cr_expect_eq(bth_staging_open(NULL, &needs[i], &ring, &error), BERTH_E_ARGUMENT);
    }
    cr_expect_str_eq(error.message, "1025 staging buffers of 1 bytes are not possible");
}

static void *no_map(void *address, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    (void)address, (void)nbytes, (void)protection, (void)flags, (void)fd, (void)offset;
    errno = ENOMEM;
    return MAP_FAILED;
}

STAGING_TEST(memory_that_cannot_be_had_is_told) /* W6 */
{
    static const bth_staging_need need = {.buffer_nbytes = PAGE, .n_buffers = 2};
    bth_staging ring;

    bth_system.mmap = no_map;
    FAILS(bth_staging_open(device, &need, &ring, &error), BERTH_E_MEMORY,
          "2097152 bytes of memory cannot be mapped: Cannot allocate memory");
    bth_system_restore();
    bth_error_clear(&error);
    test_memory_refuse(1, true);
    cr_expect_eq(bth_staging_open(device, &need, &ring, &error), BERTH_E_MEMORY);
    test_memory_refuse(0, false);
}

/* ---- fork ---- */

static int look_from_child(bth_staging *ring, const uint8_t *bytes)
{
    int ends[2];

    if (pipe(ends) < 0)
        return 1;
    if (write(ends[1], bytes, 1) != -1 || errno != EFAULT)
        return 2;
    bth_staging_close(ring);
    return bth_staging_kept_nbytes() == 0 ? 0 : 3;
}

/* What the child has where the parent's buffer is must stay, whoever opens a ring, or trims. */
static int use_from_child(uint8_t *bytes, size_t nbytes)
{
    static const size_t sizes[] = {PAGE, 2 * PAGE};
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    bth_staging ring;

    if (mmap(bytes, nbytes, PROT_READ | PROT_WRITE, flags, -1, 0) != bytes)
        return 1;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const bth_staging_need need = {
            .buffer_nbytes = sizes[i], .n_buffers = 1, .is_pinned = true};
        bth_error_clear(&error);
        if (bth_staging_open(device, &need, &ring, &error) != BERTH_E_DEVICE ||
            !strstr(error.message, ": this process was forked from one"))
            return 2;
    }
    bth_staging_free_kept();
    memset(bytes, 7, nbytes); /* a fault, if it is not there any more */
    return 0;
}

STAGING_TEST(a_child_touches_nothing_of_what_is_kept)
{
    bth_staging ring;
    int status;

    open_ring(device, PAGE, 1, &ring);
    uint8_t *bytes = ring.buffers[0].bytes;
    size_t nbytes = ring.buffers[0].nbytes;
    bth_staging_close(&ring);
    cr_assert_eq(bth_staging_kept_nbytes(), PAGE);
    pid_t child = fork();
    if (child == 0)
        _exit(use_from_child(bytes, nbytes));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    cr_expect_eq(bth_staging_kept_nbytes(), PAGE);
}

STAGING_TEST(a_child_does_not_have_the_buffers)
{
    bth_staging ring;
    int status;

    open_ring(device, PAGE, 2, &ring);
    bth_staging_buffer *buffer = &ring.buffers[0];
    memset(buffer->bytes, 1, PAGE);
    pid_t child = fork();
    if (child == 0)
        _exit(look_from_child(&ring, buffer->bytes));
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    cr_expect_eq(buffer->bytes[PAGE - 1], 1);
    bth_staging_close(&ring);
}
