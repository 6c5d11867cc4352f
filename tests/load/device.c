/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages go to devices, to the host, and to memory of the caller's; and what is then asked. */
#include <berth/config.h>
#include <berth/device.h>
#include <berth/prefetch.h>
#include <fcntl.h>

#include "format/values/value.h"
#include "tests/support/load/device_scene.h"

#include "io/file_system.h"

TestSuite(device, .init = begin_devices, .fini = end_devices);

Test(device, storages_go_to_where_they_were)
{
    open_as_they_were("");
    berth_stats stats = fetched(NULL);

    expect_all_as_they_were();
    cr_expect_eq(stats.device_nbytes,
                 4 * (1 + 500000 + 700 + 100001 + 0 + 6 + 33334)); /* not part2 and part6 */
    cr_expect_geq(stats.moved_nbytes, stats.device_nbytes);
    cr_expect_not_null(stats.limited_by);
    cr_expect_gt(stats.disk_seconds, 0);
    cr_expect_eq(stats.crc32_seconds, 0);
    cr_expect_str_eq(stats_at(1).method, "read");
    cr_expect_str_eq(stats_at(1).reason, "the file is in memory");
    cr_expect_eq(stats_at(1).moved_nbytes, 4 * 500000);
    cr_expect_str_eq(stats_at(5).reason, "it is empty");
}

static void check_crc32_seconds(const char *options)
{
    save_parts(options);
    open_as_they_were("load.check=data");
    berth_stats stats = fetched(NULL);
    cr_expect_gt(stats.crc32_seconds, 0, "%s", options);
    cr_expect_leq(stats.crc32_seconds, stats.render_seconds, "%s", options);
}

Test(device, the_seconds_of_crcs_are_told)
{
    check_crc32_seconds("");
    check_crc32_seconds("save.byteorder=big");
}

Test(device, of_any_number_of_workers_and_buffers_each_byte_comes)
{
    static const char *const options[] = {
        "io.threads=1 io.chunk_nbytes=65536",
        "io.threads=1 io.chunk_nbytes=65536 device.staging_buffers=1",
        "io.threads=3 io.chunk_nbytes=65536",
        "io.threads=3 io.chunk_nbytes=131072 device.staging_buffers=7 load.check=data",
        "io.threads=8 io.chunk_nbytes=65536 device.staging_buffers=2",
        "io.threads=2 device.staging_nbytes=65536",
        "io.threads=2 device.staging_nbytes=1GiB device.staging_buffers=1",
        "io.memory_nbytes=2MiB",
        "load.method=read load.mmap=off debug=on"};
    /* Copies come late: a buffer that is filled again too early shows. */
    static const bth_simulated_machine machine = {.n_devices = 2,
                                                  .memory_nbytes = UINT64_MAX,
                                                  .pinned_nbytes = UINT64_MAX,
                                                  .latest_nanoseconds = 300000};

    bth_simulated_set(&machine);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        load_as_they_were(options[i]);
        expect_all_as_they_were();
    }
}

Test(device, the_first_rule_that_fits_says_where)
{
    static const berth_storage_rule rules[] = {
        {.pattern = "part[13]", .device = "simulated:1"},
        {.location = "simulated:*", .max_nbytes = 4, .device = "cpu"},
        {.location = "cpu", .min_nbytes = 5000, .device = "simulated:0"},
        {.location = "simulated:1", .device = BERTH_DEVICE_SAVED}};
    static const char *const expected[N_PARTS] = {"cpu",         "simulated:1", "cpu",
                                                  "simulated:1", "simulated:1", "cpu",
                                                  "simulated:0", "simulated:1", "cpu"};

    open_as("");
    assert_ok(berth_set_storage_rules(checkpoint, rules, 4, &error));
    (void)fetched(NULL);
    for (size_t i = 0; i < N_PARTS; i++)
        expect_part(i, expected[i]);
}

Test(device, only_what_is_selected_is_brought_and_nothing_twice)
{
    const berth_selection selection = {.pattern = "part[14]"};

    open_as_they_were("");
    berth_stats stats = fetched(&selection);
    cr_expect_eq(stats.device_nbytes, 4 * 600001);
    uintptr_t address = address_at(1);
    cr_expect_str_eq(stats_at(8).method, "none");
    stats = fetched(&selection);
    cr_expect_eq(stats.device_nbytes, 0);
    cr_expect_eq(stats.moved_nbytes, 0);
    cr_expect_null(stats.limited_by);
    stats = fetched(NULL);
    cr_expect_eq(stats.device_nbytes, 4 * (1 + 700 + 6 + 33334));
    cr_expect_eq(address_at(1), address);
    expect_all_as_they_were();
}

Test(device, an_address_is_enough_to_bring_a_storage)
{
    open_as_they_were("load.check=data");
    expect_part(4, "simulated:1");
    cr_expect_str_eq(stats_at(1).method, "none");
    cr_expect_eq(stats_at(4).crc32, BERTH_CRC_GOOD);

    /* Elements in the middle, and the storage that they lie in. */
    const int64_t shape = 10, stride = 1;
    berth_tensor part = *tensor_at(4);
    uintptr_t address, whole;
    part.shape = &shape;
    part.stride = &stride;
    part.storage_offset = 1234;
    cr_assert_eq(berth_tensor_device_address(checkpoint, &part, &address, &error), 0);
    cr_assert_eq(berth_tensor_device_address(checkpoint, tensor_at(4), &whole, &error), 0);
    cr_expect_eq(address, whole + 1234);
}

/* The file is mapped and its pages come while the devices are still being set up. */
Test(device, what_was_prefetched_while_devices_were_set_up_is_read_from_the_page_cache)
{
    berth_prefetch *prefetch;
    berth_prefetch_stats stats;

    for (unsigned done = 0; done < 2; done++) {
        int fd = open(path, O_RDONLY);
        cr_assert_eq(fdatasync(fd), 0);
        cr_assert_eq(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        close(fd);
        open_as("load.reuse=once");
        assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
        usleep(20000); /* a driver starts */
        if (done)
            assert_ok(berth_prefetch_advance(prefetch, NULL, 0, -1, &error));
        cr_assert_eq(berth_prefetch_get_stats(prefetch, &stats, &error), 0);
        cr_expect_geq(stats.requested_nbytes, 4 * 600001);
        place_all(&as_they_were);
        (void)fetched(NULL);
        expect_all_as_they_were();
        if (done)
            cr_expect_str_eq(stats_at(1).method, "read", "not past the pages: %s",
                             stats_at(1).reason);
        berth_prefetch_free(prefetch);
        close_all();
    }
}

Test(device, what_is_there_is_not_prefetched)
{
    berth_prefetch *prefetch;
    berth_prefetch_stats stats;

    load_as_they_were("");
    assert_ok(berth_prefetch_begin(checkpoint, NULL, 0, NULL, &prefetch, &error));
    cr_assert_eq(berth_prefetch_get_stats(prefetch, &stats, &error), 0);
    cr_expect_leq(stats.requested_nbytes, 4 * 60300 + 4 * 4096, "the host's, in whole pages");
    berth_prefetch_free(prefetch);
}

Test(device, what_is_memory_of_the_host_stays_there)
{
    open_as("");
    expect_part(1, "cpu");
    place_all(&as_they_were);
    (void)fetched(NULL);
    expect_part(1, "cpu");
    expect_part(0, "simulated:0");

    /* And what is on a device stays there, too. */
    static const berth_storage_rule another = {.device = "simulated:1"};
    place_all(&another);
    expect_part(0, "simulated:0");
}

/* Another thread may say so at any time: here who reads does. */
static ssize_t pread_and_place(int fd, void *buffer, size_t nbytes, off_t offset)
{
    place_all(&as_they_were);
    return pread(fd, buffer, nbytes, offset);
}

Test(device, what_is_on_its_way_to_the_host_stays_there)
{
    open_as("load.method=read io.threads=1");
    bth_system.pread = pread_and_place;
    (void)fetched(NULL);
    bth_system_restore();
    for (size_t i = 0; i < N_PARTS; i++)
        expect_part(i, "cpu");
}

Test(device, the_host_reads_what_is_on_the_device)
{
    static const int64_t shape[] = {100, 3000}, stride[] = {1, 100};
    float *bytes = malloc(4 * 300000);
    berth_tensor across;

    open_as_they_were("");
    across = *tensor_at(1);
    across.rank = 2;
    across.shape = shape;
    across.stride = stride;
    for (int round = 0; round < 2; round++) { /* from the file, and then from the device */
        assert_ok(berth_tensor_read(checkpoint, tensor_at(1), 1000, 70000, bytes, &error));
        cr_expect_eq(memcmp(bytes, words[1] + 1000, 4 * 70000), 0);
        assert_ok(berth_tensor_read(checkpoint, &across, 0, 300000, bytes, &error));
        for (size_t i = 0; i < 300000; i++)
            cr_assert_eq(memcmp(&bytes[i], &words[1][i % 3000 * 100 + i / 3000], 4), 0);
        (void)fetched(NULL);
    }
    cr_assert_eq(berth_tensor_read(checkpoint, tensor_at(5), 0, 0, NULL, &error), 0);
    free(bytes);
}

Test(device, what_is_written_there_is_what_is_read_and_saved_again)
{
    char *again = test_path(folder, "again.pt");
    bth_device_stream stream;

    load_as_they_were("");
    words[3][5] ^= 0x5a5a5a5a;
    cr_assert_eq(bth_device_stream_open(device_named("simulated:0"), &stream, &error), 0);
    cr_assert_eq(
        bth_device_begin_copy_to_device(&stream, address_at(3) + 20, &words[3][5], 4, &error), 0);
    cr_assert_eq(bth_device_stream_wait(&stream, &error), 0);
    bth_device_stream_close(&stream);
    uint32_t *read = malloc(parts[3].n_words * 4);
    const berth_destination to = {
        .tensor = tensor_at(3), .address = read, .nbytes = parts[3].n_words * 4};
    assert_ok(berth_load_into(checkpoint, &to, 1, NULL, &error));
    cr_expect_eq(memcmp(read, words[3], to.nbytes), 0);
    free(read);
    assert_ok(berth_save(again, berth_root(checkpoint), NULL, &error));
    free(path);
    path = again;
    open_as("load.check=data");
    for (size_t i = 0; i < N_PARTS; i++)
        expect_part(i, "cpu");
}

Test(device, foreign_bytes_are_swapped_on_the_way)
{
    /* Where storages lie at any byte, chunks must not cut elements (T5). */
    static const char *const saves[] = {"save.byteorder=big save.storage_alignment=64",
                                        "save.byteorder=big save.storage_alignment=1"};
    static const char *const loads[] = {"io.chunk_nbytes=65536 io.threads=2",
                                        "io.chunk_nbytes=65536 load.check=data load.method=direct",
                                        ""};

    for (size_t s = 0; s < 2; s++) {
        save_parts(saves[s]);
        for (size_t i = 0; i < sizeof loads / sizeof *loads; i++) {
            load_as_they_were(loads[i]);
            expect_all_as_they_were();
        }
    }
}

Test(device, direct_reads_come_straight_into_pinned_memory)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool is_in_memory = bth_file_system_query(fd).kind == BTH_IN_MEMORY;

    (void)close(fd);
    if (is_in_memory)
        cr_skip_test("the file system is in memory");
    load_as_they_were("load.method=direct load.check=data io.chunk_nbytes=65536 io.threads=3");
    expect_all_as_they_were();
    if (checkpoint->source.access.no_direct)
        cr_expect_str_eq(stats_at(1).method, "read");
    else
        cr_expect_str_eq(stats_at(1).method, "direct");
    cr_expect_str_eq(stats_at(1).reason, checkpoint->source.access.no_direct
                                             ? checkpoint->source.access.no_direct
                                             : "load.method=direct");
}

/* No host's among them. */
static const berth_storage_rule elsewhere = {.device = "simulated:1"};

static const char *way_to_device(const char *options)
{
    static char text[100];

    open_as(options);
    place_all(&elsewhere);
    (void)fetched(NULL);
    (void)snprintf(text, sizeof text, "%s: %s", stats_at(1).method, stats_at(1).reason);
    return text;
}

Test(device, nothing_is_mapped_that_goes_there)
{
    cr_expect_str_eq(way_to_device("load.method=map"), "read: it goes to a device");
    cr_expect_null(checkpoint->source.access.map.address);
    cr_expect_str_eq(way_to_device("load.method=read"), "read: load.method=read");
}

static int read_memory(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    memcpy(buffer, (const uint8_t *)context + offset, nbytes);
    return 0;
}

Test(device, sources_of_all_kinds_come_there)
{
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    const berth_source source = {.nbytes = nbytes, .read = read_memory, .context = bytes};

    cr_assert_eq(berth_open_source(FROM_MEMORY(bytes, nbytes), NULL, &checkpoint, &error), 0);
    place_all(&as_they_were);
    (void)fetched(NULL);
    expect_all_as_they_were();
    cr_expect_str_eq(stats_at(1).reason, "the source is memory");
    berth_close(checkpoint);
    cr_assert_eq(berth_open_source(&source, NULL, &checkpoint, &error), 0);
    place_all(&as_they_were);
    (void)fetched(NULL);
    expect_all_as_they_were();
    cr_expect_str_eq(stats_at(1).reason, "the source is a function");
    close_all();
    free(bytes);
}

typedef struct watched {
    const uint8_t *bytes;
    uint64_t n_reads, n_copies, n_waits; /* before the second read */
} watched;

static int read_and_watch(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    watched *seen = context;

    if (++seen->n_reads == 2) {
        seen->n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY);
        seen->n_waits = bth_simulated_n_calls(BTH_SIMULATED_WAIT);
    }
    memcpy(buffer, seen->bytes + offset, nbytes);
    return 0;
}

/* One thread, too, reads while the device copies what was read before. */
Test(device, chunks_are_read_while_others_are_copied)
{
    const berth_selection large = {.pattern = "part1"};
    size_t nbytes;
    uint8_t *bytes = test_read_file(path, &nbytes);
    watched seen = {.bytes = bytes};
    const berth_source source = {.nbytes = nbytes, .read = read_and_watch, .context = &seen};

    cr_assert_eq(berth_config_patch("io.threads=1 io.chunk_nbytes=65536", &error), 0);
    cr_assert_eq(berth_open_source(&source, NULL, &checkpoint, &error), 0);
    cr_assert_eq(berth_config_unpatch(&error), 0);
    place_all(&as_they_were);
    uint64_t n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY);
    uint64_t n_waits = bth_simulated_n_calls(BTH_SIMULATED_WAIT);
    seen.n_reads = 0;
    (void)fetched(&large);
    cr_expect_geq(seen.n_reads, 30);
    cr_expect_eq(seen.n_copies - n_copies, 1);
    cr_expect_eq(seen.n_waits - n_waits, 0, "the second read has waited for the first copy");
    expect_part(1, "simulated:0");
    close_all();
    free(bytes);
}

/* ---- small storages ---- */

enum { N_SMALL = 2000 };
static uint8_t small[N_SMALL][100];

/* All on one device, but one. */
static void save_small(void)
{
    static const int64_t shape[] = {100};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);

    for (size_t i = 0; i < N_SMALL; i++) {
        berth_tensor tensor = {.dtype = BERTH_UINT8, .rank = 1, .shape = shape};
        memset(small[i], (int)(i % 251), 100);
        tensor.storage = berth_storage_new(tree, BERTH_UINT8, small[i], 100,
                                           i == 1000 ? "simulated:1" : "simulated:0");
        berth_list_append(root, berth_make_tensor(tree, &tensor));
    }
    assert_ok(berth_save(path, root, NULL, &error));
    berth_tree_free(tree);
}

static const berth_tensor *small_at(size_t i)
{
    return berth_as_tensor(bth_value_item(berth_root(checkpoint), i));
}

static void expect_small(size_t i)
{
    uint8_t got[100];
    uintptr_t address;

    cr_assert_eq(berth_tensor_device_address(checkpoint, small_at(i), &address, &error), 0);
    cr_assert_eq(address % 64, 0);
    cr_assert_eq(berth_tensor_read(checkpoint, small_at(i), 0, 100, got, &error), 0);
    cr_assert_eq(memcmp(got, small[i], 100), 0, "%zu", i);
}

/* One copy a chunk. */
Test(device, small_neighbours_are_copied_together)
{
    save_small();
    load_as_they_were("io.chunk_nbytes=128KiB");
    uint64_t n_copies = bth_simulated_n_calls(BTH_SIMULATED_COPY);
    cr_expect_leq(n_copies, 12, "%llu copies", (unsigned long long)n_copies);
    for (size_t i = 0; i < N_SMALL; i++)
        expect_small(i);
}

/* As far from each other as in the file: what lies between is not ours. */
static int give_small(void *context, const berth_storage *storage, berth_storage_choice *placement)
{
    const uintptr_t *address = context;

    if (storage->offset > small_at(9)->storage->offset)
        return 0;
    placement->device = "simulated:0";
    placement->address = *address + (uintptr_t)(storage->offset - small_at(0)->storage->offset);
    placement->nbytes = 100;
    return 0;
}

Test(device, between_storages_in_memory_of_the_callers_nothing_is_written)
{
    static uint8_t got[10000], before[10000];
    uintptr_t address;

    save_small();
    memset(before, 0xa5, sizeof before);
    cr_assert_eq(berth_device_memory_new("simulated:0", sizeof before, &address, &error), 0);
    cr_assert_eq(berth_device_memory_copy("simulated:0", address, before, sizeof before,
                                          BERTH_TO_DEVICE, &error),
                 0);
    open_as("");
    assert_ok(berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give_small, .context = &address}, 1, &error));
    (void)fetched(NULL);
    for (size_t i = 0; i < 10; i++) {
        expect_small(i);
        memcpy(before + (small_at(i)->storage->offset - small_at(0)->storage->offset), small[i],
               100);
    }
    cr_assert_eq(berth_device_memory_copy("simulated:0", address, got, sizeof got,
                                          BERTH_FROM_DEVICE, &error),
                 0);
    cr_expect_eq(memcmp(got, before, sizeof got), 0);
    berth_device_memory_free("simulated:0", address);
}

/* ---- the caller's function, and its memory ---- */

struct giver {
    uintptr_t address; /* on simulated:1 */
    size_t n_asked;
};

static int give(void *context, const berth_storage *storage, berth_storage_choice *placement)
{
    struct giver *giver = context;

    cr_expect_str_eq(placement->device, "cpu");
    cr_expect_eq(placement->address, 0);
    giver->n_asked++;
    if (berth_storage_get_info(storage)->nbytes == 4 * 500000)
        *placement = (berth_storage_choice){
            .device = "simulated:1", .address = giver->address + 64, .nbytes = 4 * 500000};
    else if (berth_storage_get_info(storage)->nbytes == 4 * 700)
        placement->device = "simulated:0";
    return 0;
}

Test(device, a_function_says_where_and_gives_memory)
{
    struct giver giver = {0};
    bth_device_handle *device = device_named("simulated:1");

    cr_assert_eq(bth_device_allocate_memory(device, 4 * 500000 + 64, &giver.address, &error), 0);
    open_as("load.check=data");
    assert_ok(berth_set_storage_rules(
        checkpoint, &(berth_storage_rule){.choose = give, .context = &giver}, 1, &error));
    cr_expect_eq(giver.n_asked, N_PARTS);
    (void)fetched(NULL);
    cr_expect_eq(address_at(1), giver.address + 64);
    expect_bytes("simulated:1", giver.address + 64, 1);
    expect_part(3, "simulated:0");
    expect_part(4, "cpu");
    cr_expect_eq(bth_simulated_seen().memory_nbytes, 4 * 500000 + 64 + 2800); /* and part3's */
    berth_close(checkpoint);
    checkpoint = NULL;
    expect_bytes("simulated:1", giver.address + 64, 1); /* it is the caller's still */
    bth_device_release_memory(device, giver.address);
}
