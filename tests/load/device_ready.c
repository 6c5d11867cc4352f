/* SPDX-License-Identifier: BSD-3-Clause */
/* X17: loads into memory of the caller's, which kernels write to until an event comes. */
#include <berth/config.h>
#include <berth/device.h>
#include <errno.h>
#include <pthread.h>

#include "base/error.h"
#include "tests/support/load/device_scene.h"

#define PATTERN 0xa5
#define MAX_NBYTES ((size_t)4 * 500000)

/* A kernel that writes all of the memory, late, and the event behind it. */
struct kernel {
    const char *device;
    size_t part; /* whose bytes then go there */
    bool is_told;
    uintptr_t address;
    void *pinned;
    bth_device_stream stream;
    bth_device_event event;
};

static struct kernel kernels[] = {{.device = "simulated:0", .part = 1},
                                  {.device = "simulated:1", .part = 4},
                                  {.device = "simulated:0", .part = 3}};
#define N_KERNELS (sizeof kernels / sizeof *kernels)

static void launch(struct kernel *kernel)
{
    bth_device_handle *device = device_named(kernel->device);

    cr_assert_eq(bth_pinned_allocate(device, MAX_NBYTES, &kernel->pinned, &error), 0);
    memset(kernel->pinned, PATTERN, MAX_NBYTES);
    cr_assert_eq(bth_device_allocate_memory(device, MAX_NBYTES, &kernel->address, &error), 0);
    cr_assert_eq(bth_device_stream_open(device, &kernel->stream, &error), 0);
    cr_assert_eq(bth_device_event_open(device, &kernel->event, &error), 0);
    kernel->is_told = true;
}

/* The kernels are late from now on. */
static void hold_all(void)
{
    for (size_t i = 0; i < N_KERNELS; i++) {
        struct kernel *kernel = &kernels[i];
        bth_simulated_hold(&kernel->stream, true);
        cr_assert_eq(bth_device_begin_copy_to_device(&kernel->stream, kernel->address,
                                                     kernel->pinned, MAX_NBYTES, &error),
                     0);
        cr_assert_eq(bth_device_event_record(&kernel->event, &kernel->stream, &error), 0);
    }
}

static void let_go(void)
{
    for (size_t i = 0; i < N_KERNELS; i++)
        bth_simulated_hold(&kernels[i].stream, false);
}

static void wait_for_all(void)
{
    for (size_t i = 0; i < N_KERNELS; i++)
        cr_assert_eq(bth_device_stream_wait(&kernels[i].stream, &error), 0);
}

static void set_up_kernels(void)
{
    begin_devices();
    for (size_t i = 0; i < N_KERNELS; i++)
        launch(&kernels[i]);
}

static void tear_down_kernels(void)
{
    for (size_t i = 0; i < N_KERNELS; i++) {
        struct kernel *kernel = &kernels[i];
        bth_device_event_close(&kernel->event);
        bth_device_stream_close(&kernel->stream);
        bth_device_release_memory(device_named(kernel->device), kernel->address);
        bth_pinned_release(device_named(kernel->device), kernel->pinned);
    }
    end_devices();
}

TestSuite(device_ready, .init = set_up_kernels, .fini = tear_down_kernels);

static int give(void *context, const berth_storage *storage, berth_storage_choice *placement)
{
    (void)context;
    for (size_t i = 0; i < N_KERNELS; i++) {
        const struct kernel *kernel = &kernels[i];
        if (berth_storage_get_info(storage)->nbytes == 4 * parts[kernel->part].n_words)
            *placement =
                (berth_storage_choice){.device = kernel->device,
                                       .address = kernel->address,
                                       .nbytes = MAX_NBYTES,
                                       .ready = kernel->is_told ? kernel->event.native : NULL};
    }
    return 0;
}

static void open_for_kernels(const char *options)
{
    open_as(options);
    assert_ok(berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give, .context = NULL}, 1, &error));
}

static void expect_all_loaded(const char *what)
{
    wait_for_all();
    for (size_t i = 0; i < N_KERNELS; i++)
        expect_bytes(kernels[i].device, kernels[i].address, kernels[i].part);
    cr_expect_eq(error.code, 0, "%s", what);
}

/* One behind the other: who waits for the first only comes too early for the rest. */
static void *let_go_late(void *argument)
{
    for (size_t i = 0; i < N_KERNELS; i++) {
        (void)usleep(15000);
        bth_simulated_hold(&kernels[i].stream, false);
    }
    return argument;
}

static const char *const options[] = {
    "io.threads=1 io.chunk_nbytes=65536", "io.threads=3 io.chunk_nbytes=65536",
    "io.threads=1 io.chunk_nbytes=65536 device.staging_buffers=1", "load.check=data io.threads=2"};

Test(device_ready, copies_come_behind_the_kernels_that_use_the_memory)
{
    pthread_t thread;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        open_for_kernels(options[i]);
        hold_all();
        cr_assert_eq(pthread_create(&thread, NULL, let_go_late, NULL), 0);
        (void)fetched(NULL);
        pthread_join(thread, NULL);
        expect_all_loaded(options[i]);
    }
}

Test(device_ready, whoever_asks_for_an_address_waits_too)
{
    pthread_t thread;

    open_for_kernels("");
    hold_all();
    cr_assert_eq(pthread_create(&thread, NULL, let_go_late, NULL), 0);
    for (size_t i = 0; i < N_KERNELS; i++)
        cr_expect_eq(address_at(kernels[i].part), kernels[i].address);
    pthread_join(thread, NULL);
    expect_all_loaded("addresses");
}

/* What the event is for: a simulated device shows what goes wrong without. */
Test(device_ready, kernels_that_are_not_told_of_overwrite_what_was_loaded)
{
    uint8_t bytes[64];

    for (size_t i = 0; i < N_KERNELS; i++)
        kernels[i].is_told = false;
    open_for_kernels("");
    hold_all();
    (void)fetched(NULL);
    expect_bytes(kernels[0].device, kernels[0].address, kernels[0].part);
    let_go();
    wait_for_all();
    cr_assert_eq(berth_device_memory_copy(kernels[0].device, kernels[0].address, bytes,
                                          sizeof bytes, BERTH_FROM_DEVICE, &error),
                 0);
    for (size_t i = 0; i < sizeof bytes; i++)
        cr_expect_eq(bytes[i], PATTERN);
}

/* ---- who waits, and how often ---- */

struct watched {
    uint8_t *bytes; /* of the file */
    unsigned n_reads;
};

static int read_and_let_go(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct watched *seen = context;

    if (++seen->n_reads == 2)
        let_go();
    memcpy(buffer, seen->bytes + offset, nbytes);
    return 0;
}

static void open_source(struct watched *seen, int (*read)(void *, void *, size_t, uint64_t))
{
    berth_source source = {.read = read, .context = seen};
    size_t nbytes;

    seen->bytes = test_read_file(path, &nbytes);
    source.nbytes = nbytes;
    seen->n_reads = 1000;
    cr_assert_eq(berth_config_patch("io.threads=1 io.chunk_nbytes=65536", &error), 0);
    assert_ok(berth_open_source(&source, NULL, &checkpoint, &error));
    cr_assert_eq(berth_config_unpatch(&error), 0);
    assert_ok(berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give, .context = NULL}, 1, &error));
    hold_all();
    seen->n_reads = 0;
}

static void close_source(struct watched *seen)
{
    berth_close(checkpoint);
    checkpoint = NULL;
    free(seen->bytes);
}

/* A host that waited would never come to the second read. */
Test(device_ready, the_device_waits_once_a_stream_and_storage_and_the_host_reads_on)
{
    const berth_selection large = {.pattern = "part1"};
    struct watched seen = {0};

    open_source(&seen, read_and_let_go);
    uint64_t n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY);
    uint64_t n_records = bth_simulated_n_calls(BTH_SIMULATED_RECORD);
    (void)fetched(&large);
    n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY) - n_copies;
    cr_expect_geq(n_copies, 30);
    cr_expect_eq(bth_simulated_n_calls(BTH_SIMULATED_RECORD) - n_records, n_copies + 1);
    wait_for_all();
    expect_bytes("simulated:0", kernels[0].address, 1);
    close_source(&seen);
}

/* ---- failures ---- */

Test(device_ready, a_wait_that_fails_is_told_and_the_next_load_waits_again)
{
    char text[200];
    pthread_t thread;

    open_for_kernels("io.threads=1");
    hold_all();
    bth_simulated_fail(BTH_SIMULATED_RECORD, 1, BTH_SIMULATED_ONCE);
    cr_expect_eq(berth_load(checkpoint, NULL, NULL, &error), BERTH_E_DEVICE);
    (void)snprintf(text, sizeof text,
                   "%s: \"part1\": data/1: simulated:0: a stream cannot wait for an event: "
                   "unspecified failure (SIMULATED_FAILED)",
                   path);
    cr_expect_str_eq(error.message, text);
    cr_assert_eq(pthread_create(&thread, NULL, let_go_late, NULL), 0);
    (void)fetched(NULL);
    pthread_join(thread, NULL);
    expect_all_loaded("after a failure");
}

static int read_twice(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct watched *seen = context;

    memcpy(buffer, seen->bytes + offset, nbytes);
    return ++seen->n_reads == 3 ? EIO : 0;
}

/* It fails while copies wait behind a kernel: none is made when it has come back. */
Test(device_ready, a_load_that_fails_ends_its_copies_before_it_comes_back)
{
    const berth_selection large = {.pattern = "part1"};
    pthread_t thread;
    struct watched seen = {0};

    open_source(&seen, read_twice);
    cr_assert_eq(pthread_create(&thread, NULL, let_go_late, NULL), 0);
    cr_expect_eq(berth_load(checkpoint, &large, NULL, &error), BERTH_E_CALLBACK);
    bth_error_clear(&error);
    cr_assert_eq(berth_device_memory_copy("simulated:0", kernels[0].address, words[1], MAX_NBYTES,
                                          BERTH_TO_DEVICE, &error),
                 0);
    pthread_join(thread, NULL);
    wait_for_all();
    expect_bytes("simulated:0", kernels[0].address, 1);
    close_source(&seen);
}
