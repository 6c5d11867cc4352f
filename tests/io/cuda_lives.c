/* SPDX-License-Identifier: BSD-3-Clause */
/* X18: contexts that die, by a reset or a kernel that went wrong, and what hung on them. */
#include <berth/device.h>
#include <criterion/criterion.h>

#ifndef BERTH_HAS_CUDA

Test(cuda_lives, are_left_out)
{
    cr_skip_test("this library was built without support for CUDA devices");
}

#else

#include <pthread.h>

#include "io/device/staging_buffers.h"
#include "load/checkpoint.h"
#define CUDA_SUITE cuda_lives
#include "tests/io/cuda_stand_in.h"
#include "tests/support/support.h"

#define DESTROYED "context is destroyed (CUDA_ERROR_CONTEXT_IS_DESTROYED)"
#define GONE "cuda:1: its context died and was opened again: all data in it is lost"

/* Another library, which goes on with the device. */
static void reset_and_go_on(size_t i)
{
    kill_context(i);
    make_context(i);
}

static void *kill_from_elsewhere(void *argument)
{
    kill_context(1);
    return argument;
}

static void expect_opened_anew(int times)
{
    bth_device_handle *before = device;
    uintptr_t address;

    open_device("cuda:1", 1);
    cr_expect_eq(device, before, "another handle");
    cr_expect_eq(n_retained[1], times);
    assert_ok(bth_device_allocate_memory(device, 5, &address, &error));
    bth_device_release_memory(device, address);
}

/* ---- between two operations, and in one ---- */

CUDA_TEST(a_context_that_was_reset_is_opened_anew)
{
    pthread_t thread;
    uintptr_t address;

    open_device("cuda:1", 1);
    cr_assert_eq(pthread_create(&thread, NULL, kill_from_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    FAILS_ONCE(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE,
               "cuda:1: 5 bytes of device memory cannot be allocated: " DESTROYED);
    expect_opened_anew(2);
    expect_opened_anew(2);
    kill_context(1);
    expect_opened_anew(3);
}

CUDA_TEST(a_context_that_another_made_anew_is_told_by_its_number)
{
    open_device("cuda:1", 1);
    reset_and_go_on(1);
    expect_opened_anew(2);
    expect_opened_anew(2);
}

CUDA_TEST(without_numbers_of_contexts_a_reset_is_seen)
{
    missing = "cuCtxGetId";
    open_device("cuda:1", 1);
    kill_context(1);
    expect_opened_anew(2);
}

static void expect_gone(bth_device_stream *stream, bth_device_event *event, const char *sentence)
{

    FAILS_ONCE(bth_device_begin_copy_to_host(stream, &made, 0xD000, 4, &error), BERTH_E_DEVICE,
               sentence);
    FAILS_ONCE(bth_device_begin_copy_to_device(stream, 0xD000, &made, 4, &error), BERTH_E_DEVICE,
               sentence);
    FAILS_ONCE(bth_device_stream_wait(stream, &error), BERTH_E_DEVICE, sentence);
    FAILS_ONCE(bth_device_stream_wait_for_event(stream, &memory, &error), BERTH_E_DEVICE, sentence);
    FAILS_ONCE(bth_device_event_record(event, stream, &error), BERTH_E_DEVICE, sentence);
    FAILS_ONCE(bth_device_event_wait(event, &error), BERTH_E_DEVICE, sentence);
}

/* The stand-in fails the test where a stream or event of an old context is used in a new one. */
CUDA_TEST(streams_and_events_of_a_dead_context_are_errors_and_never_used)
{
    bth_device_stream stream;
    bth_device_event event;

    for (int round = 0; round < 3; round++) {
        open_device("cuda:1", 1);
        assert_ok(bth_device_stream_open(device, &stream, &error));
        assert_ok(bth_device_event_open(device, &event, &error));
        if (round == 2)
            reset_and_go_on(1);
        else
            kill_context(1);
        int n_before = n_calls;
        expect_gone(&stream, &event, "cuda:1: its context died: " DESTROYED);
        if (round > 0)
            open_device("cuda:1", 1); /* as another thread may */
        if (round > 0)
            expect_gone(&stream, &event, GONE);
        bth_device_event_close(&event);
        bth_device_stream_close(&stream);
        cr_expect_eq(n_calls - n_before, round > 0 ? 2 : 0, "only the new context is tried out");
    }
}

/* At the end of a process the driver may be gone already. */
CUDA_TEST(a_driver_that_tells_no_state_is_asked_for_nothing_else)
{
    bth_device_stream stream;

    open_device("cuda:1", 1);
    assert_ok(bth_device_stream_open(device, &stream, &error));
    int n_before = n_calls;
    state_result = CUDA_ERROR_DEINITIALIZED;
    FAILS_ONCE(bth_device_stream_wait(&stream, &error), BERTH_E_DEVICE,
               "cuda:1: its context died: a fake (CUDA_ERROR_FAKE)");
    bth_device_stream_close(&stream);
    cr_expect_eq(n_calls, n_before);
}

CUDA_TEST(a_context_that_cannot_be_made_current_is_not_opened)
{
    push_result = CUDA_ERROR_INVALID_CONTEXT;
    FAILS_ONCE(bth_device_open("cuda:1", &device, &error), BERTH_E_DEVICE,
               "cuda:1: cannot be opened: a fake (CUDA_ERROR_FAKE)");
    push_result = CUDA_SUCCESS;
    open_device("cuda:1", 1);
}

/* ---- kernels that went wrong ---- */

/* Until the process, or whoever it is, resets the device, there is nothing to be opened. */
CUDA_TEST(a_context_that_a_kernel_broke_is_told_until_it_is_reset)
{
    uintptr_t address;

    open_device("cuda:1", 1);
    contexts[1].sick = CUDA_ERROR_ECC_UNCORRECTABLE;
    assert_ok(bth_device_open("cuda:1", &device, &error)); /* nobody has noticed */
    FAILS_ONCE(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE,
               "cuda:1: 5 bytes of device memory cannot be allocated: a fake (CUDA_ERROR_FAKE)");
    for (int round = 0; round < 2; round++) {
        bth_device_handle *none;
        FAILS_ONCE(bth_device_open("cuda:1", &none, &error), BERTH_E_DEVICE,
                   "cuda:1: cannot be opened: a fake (CUDA_ERROR_FAKE)");
        cr_expect_null(none);
    }
    cr_expect_eq(bth_device_life(device), 1);
    kill_context(1);
    expect_opened_anew(4);
    cr_expect_eq(bth_device_life(device), 2);
}

CUDA_TEST(a_failure_that_breaks_nothing_opens_nothing_anew)
{
    uintptr_t address;

    open_device("cuda:1", 1);
    next_result = CUDA_ERROR_INVALID_VALUE;
    cr_expect_eq(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE);
    bth_error_clear(&error);
    next_result = CUDA_ERROR_OUT_OF_MEMORY; /* not even for the event that it is tried with */
    open_device("cuda:1", 1);
    next_result = CUDA_SUCCESS;
    expect_opened_anew(1);
}

CUDA_TEST(what_only_another_process_helps_against_says_so)
{
    static const int final[] = {226, 700, 702, 714, 715, 716, 717, 718, 719, 721};
    static const int others[] = {1, 2, 201, 214, 220, 704, 709, 710, 713, 720, 999};
    uintptr_t address;

    open_device("cuda:1", 1);
    for (size_t i = 0; i < sizeof final / sizeof *final; i++) {
        next_result = (CUresult) final[i];
        FAILS_ONCE(bth_device_allocate_memory(device, 5, &address, &error), BERTH_E_DEVICE,
                   "cuda:1: 5 bytes of device memory cannot be allocated, and the process must be "
                   "started again: a fake (CUDA_ERROR_FAKE)");
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        next_result = (CUresult)others[i];
        cr_expect_lt(bth_device_allocate_memory(device, 5, &address, &error), 0);
        cr_expect_null(strstr(error.message, "process"), "%d: %s", others[i], error.message);
        bth_error_clear(&error);
    }
    next_result = CUDA_SUCCESS;
}

/* ---- pinned buffers that are kept ---- */

static const bth_staging_need two = {.buffer_nbytes = 5, .n_buffers = 2, .is_pinned = true};

static long n_mapped;

static void *count_map(void *at, size_t nbytes, int protection, int flags, int fd, off_t offset)
{
    void *bytes = mmap(at, nbytes, protection, flags, fd, offset);

    n_mapped += bytes != MAP_FAILED ? (long)nbytes : 0;
    return bytes;
}

static int count_unmap(void *bytes, size_t nbytes)
{
    n_mapped -= (long)nbytes;
    return munmap(bytes, nbytes);
}

static void use_ring(bool dies_meanwhile)
{
    bth_staging ring;

    open_device("cuda:1", 1);
    assert_ok(bth_staging_open(device, &two, &ring, &error));
    cr_expect_eq(ring.n_buffers, 2);
    memset(ring.buffers[0].bytes, 1, ring.buffer_nbytes);
    if (dies_meanwhile)
        kill_context(1);
    bth_staging_close(&ring);
}

/* The stand-in fails the test where what was pinned in an old context is unpinned in a new one. */
static void check_buffers(void)
{
    use_ring(false);
    uint64_t kept_nbytes = bth_staging_kept_nbytes();
    long n_before = n_mapped;
    cr_expect_gt(kept_nbytes, 0);
    for (int round = 0; round < 20; round++) {
        if (round % 3 == 0)
            kill_context(1);
        if (round % 3 == 1)
            reset_and_go_on(1);
        use_ring(round % 4 == 3);
        cr_expect_eq(bth_staging_kept_nbytes(), round % 4 == 3 ? 0 : kept_nbytes);
        cr_expect_leq(n_mapped, n_before);
    }
    kill_context(1);
    bth_staging_free_kept();
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
    cr_expect_eq(n_mapped, 0);
}

CUDA_TEST(buffers_that_were_pinned_in_a_dead_context_are_given_up)
{
    bth_system.mmap = count_map;
    bth_system.munmap = count_unmap;
    check_buffers();
}

CUDA_TEST(buffers_that_a_dead_context_made_are_given_up)
{
    static const bth_staging_need one = {.buffer_nbytes = 5, .n_buffers = 1, .is_pinned = true};
    bth_staging ring;

    missing = "cuMemHostRegister_v2";
    for (int round = 0; round < 3; round++) {
        open_device("cuda:1", 1);
        assert_ok(bth_staging_open(device, &one, &ring, &error));
        bth_staging_close(&ring);
        cr_expect_gt(bth_staging_kept_nbytes(), 0);
        if (round > 0)
            reset_and_go_on(1);
        else
            kill_context(1);
    }
    bth_staging_free_kept();
    cr_expect_eq(bth_staging_kept_nbytes(), 0);
}

/* ---- loads ---- */

static void *file;
static size_t file_nbytes;
static berth_checkpoint *checkpoint;
static bool is_given;

static void save(void)
{
    static const float numbers[100];
    const int64_t n = 100;
    berth_tree *tree = berth_tree_new(NULL);
    berth_storage *storage =
        berth_storage_new(tree, BERTH_FLOAT32, numbers, sizeof numbers, "cuda:1");
    berth_value *tensor = berth_make_tensor(
        tree, &(berth_tensor){.dtype = BERTH_FLOAT32, .rank = 1, .shape = &n, .storage = storage});

    assert_ok(berth_save_to(TO_MEMORY(&file, &file_nbytes), OF_VALUE(tensor), NULL, &error));
    berth_tree_free(tree);
}

static int give(void *context, const berth_storage *storage, berth_storage_choice *placement)
{
    placement->device = "cuda:1";
    placement->address = is_given ? 0xD000 : 0;
    placement->nbytes = berth_storage_get_info(storage)->nbytes;
    placement->ready = context;
    return 0;
}

static int open_and_place(void *ready)
{
    assert_ok(berth_open_source(FROM_MEMORY(file, file_nbytes), NULL, &checkpoint, &error));
    return berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give, .context = ready}, 1, &error);
}

static int address_of_all(uintptr_t *address)
{
    return berth_tensor_device_address(checkpoint, berth_as_tensor(berth_root(checkpoint)), address,
                                       &error);
}

static void close_file(void)
{
    berth_close(checkpoint);
    berth_free(file);
    bth_staging_free_kept();
}

/* X17: the device waits for the caller's event, before the copy; the host ('H') does not. */
CUDA_TEST(a_load_waits_for_the_callers_event_on_its_stream)
{
    static struct object ready;

    is_given = true;
    needed = &contexts[1];
    save();
    assert_ok(open_and_place(&ready));
    asked[0] = '\0';
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    cr_expect(strncmp(asked, "wcr", 3) == 0 && !strchr(asked, 'H'), "%s", asked);
    close_file();
}

static void load_again(void)
{
    uintptr_t address;

    assert_ok(berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give, .context = NULL}, 1, &error));
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    assert_ok(address_of_all(&address));
    cr_expect_eq(address, 0xD000);
}

/*
 * Each call in turn: what is held then is given up, and the same load goes well in a new context.
 * The last calls are those that give back, when all has come.
 */
static void kill_in_loads(void)
{
    int n_failed = 0;

    needed = &contexts[1];
    save();
    for (int n = 1; n <= 25; n++) {
        kill_at = n_calls + n;
        if (open_and_place(NULL) == 0)
            (void)berth_load(checkpoint, NULL, NULL, &error);
        int status = error.code;
        n_failed += status < 0;
        cr_expect(status == 0 || strstr(error.message, "context "), "%d: %s", n, error.message);
        bth_error_clear(&error);
        kill_at = 0;
        if (status < 0)
            load_again();
        berth_close(checkpoint);
        memory.id = 0;
    }
    cr_expect_geq(n_failed, 6);
    checkpoint = NULL;
    close_file();
}

CUDA_TEST(a_context_that_dies_in_a_load_into_memory_of_ours_ends_that_load_only)
{
    kill_in_loads();
}

CUDA_TEST(a_context_that_dies_in_a_load_into_the_callers_memory_ends_that_load_only)
{
    is_given = true;
    kill_in_loads();
}

static void expect_no_address(const char *sentence)
{
    float number;
    uintptr_t address = 1;

    cr_expect_eq(address_of_all(&address), BERTH_E_DEVICE);
    cr_expect_not_null(strstr(error.message, sentence), "%s", error.message);
    cr_expect_eq(address, 0);
    FAILS_SAYING(berth_tensor_read(checkpoint, berth_as_tensor(berth_root(checkpoint)), 0, 1,
                                   &number, &error),
                 BERTH_E_DEVICE, sentence);
    bth_error_clear(&error);
}

/* The stand-in fails the test where memory of an old context is freed in a new one. */
CUDA_TEST(memory_of_a_checkpoint_in_a_dead_context_has_no_address_and_is_not_freed)
{
    for (int round = 0; round < 4; round++) {
        needed = &contexts[1];
        save();
        assert_ok(open_and_place(NULL));
        assert_ok(berth_load(checkpoint, NULL, NULL, &error));
        if (round % 2)
            reset_and_go_on(1);
        else
            kill_context(1);
        expect_no_address("cuda:1: its context died: " DESTROYED);
        if (round > 1) {
            open_device("cuda:1", 1);
            memory.id = contexts[1].id; /* another's now, at the same address */
            expect_no_address(GONE);
        }
        int n_before = n_calls;
        berth_close(checkpoint);
        cr_expect_eq(n_calls, n_before, "nothing is asked of the driver");
        checkpoint = NULL;
        close_file();
    }
}

/* It was given in the old context; what lies there now is not the caller's. */
CUDA_TEST(memory_that_was_given_in_a_dead_context_is_not_written)
{
    is_given = true;
    needed = &contexts[1];
    save();
    assert_ok(open_and_place(NULL));
    reset_and_go_on(1);
    asked[0] = '\0';
    FAILS_ONCE(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_DEVICE, "memory: data/0: " GONE);
    cr_expect_null(strchr(asked, 'c'));
    close_file();
}

CUDA_TEST(memory_in_a_context_that_a_kernel_broke_has_no_address)
{
    needed = &contexts[1];
    save();
    assert_ok(open_and_place(NULL));
    assert_ok(berth_load(checkpoint, NULL, NULL, &error));
    contexts[1].sick = CUDA_ERROR_ASSERT;
    expect_no_address("(CUDA_ERROR_FAKE)");
    close_file();
}

#endif
