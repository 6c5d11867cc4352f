/* SPDX-License-Identifier: BSD-3-Clause */
/* Storages and tensors to the caller's memory: many at once, by every method, hostile ones too. */
#include <berth/config.h>

#include "tests/support/load/fetch_scene.h"
#include "tests/support/support.h"

TestSuite(load_into, .init = begin_fetch, .fini = end_fetch);

#define N_DESTINATIONS (2 * N_TENSORS)

static berth_destination destinations[N_DESTINATIONS];

/* All tensors, in the reverse order, and all storages. `shift`: so far from an aligned address. */
static void make_destinations(size_t shift)
{
    for (size_t i = 0; i < N_DESTINATIONS; i++) {
        size_t tensor = N_TENSORS - 1 - i % N_TENSORS, nbytes = lengths[tensor] * 4;
        const berth_tensor *found = tensor_at(tensor);
        uint8_t *memory = NULL;
        cr_assert_eq(posix_memalign((void **)&memory, 4096, nbytes + shift + 1), 0);
        memset(memory, 0x5a, nbytes + shift + 1);
        destinations[i] = (berth_destination){.address = memory + shift, .nbytes = nbytes};
        if (i < N_TENSORS)
            destinations[i].tensor = found;
        else
            destinations[i].storage = found->storage;
    }
}

static void free_destinations(size_t shift)
{
    for (size_t i = 0; i < N_DESTINATIONS; i++)
        free((uint8_t *)destinations[i].address - shift);
}

static int load_all(const berth_params *params)
{
    return berth_load_into(checkpoint, destinations, N_DESTINATIONS, params, &error);
}

static void expect_loaded(const char *about)
{
    for (size_t i = 0; i < N_DESTINATIONS; i++) {
        size_t tensor = N_TENSORS - 1 - i % N_TENSORS, nbytes = lengths[tensor] * 4;
        const uint8_t *memory = destinations[i].address;
        cr_expect_eq(memcmp(memory, elements[tensor], nbytes), 0, "%s: %zu", about, i);
        cr_expect_eq(memory[nbytes], 0x5a, "%s: %zu", about, i);
    }
}

static const char *const ways[] = {
    "load.method=read",
    "load.method=read load.check=data " BACK,
    "load.method=direct " BACK,
    "load.method=direct load.check=data",
    "load.method=direct io.memory_nbytes=65536 " BACK,
    "load.method=direct io.memory_nbytes=4096 " BACK,
    "load.method=map",
    "load.mmap=off load.check=data io.threads=1",
};

Test(load_into, has_every_byte_whatever_the_way_and_the_address)
{
    static const size_t shifts[] = {0, 1, 64, 512};

    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (size_t k = 0; k < sizeof shifts / sizeof *shifts; k++) {
            open_as(ways[i]);
            make_destinations(shifts[k]);
            cr_assert_eq(load_all(NULL), 0, "%s: %s", ways[i], error.message);
            expect_loaded(ways[i]);
            cr_expect_not(is_memory(3), "the checkpoint has no memory of it");
            free_destinations(shifts[k]);
        }
}

/* Whose pages the load may bring in as it likes. */
Test(load_into, fills_memory_that_nobody_has_touched)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        size_t nbytes = lengths[3] * 4;
        void *memory =
            mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        cr_assert_neq(memory, MAP_FAILED);
        open_as(ways[i]);
        const berth_destination to = {
            .tensor = tensor_at(3), .address = memory, .nbytes = nbytes, .is_new = 1};
        assert_ok(berth_load_into(checkpoint, &to, 1, NULL, &error));
        cr_expect_eq(memcmp(memory, elements[3], nbytes), 0, "%s", ways[i]);
        cr_expect_eq(munmap(memory, nbytes), 0);
    }
    FAILS_SAYING(berth_load_into(checkpoint, NULL, 0, &(berth_params){.reserved = {1}}, &error),
                 BERTH_E_ARGUMENT, "berth_params: reserved[0] is not 0");
}

/* T5 */
Test(load_into, swaps_the_other_byte_order)
{
    bool is_big = __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__;

    save_tensors(is_big ? "save.byteorder=little save.storage_alignment=1"
                        : "save.byteorder=big save.storage_alignment=1");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        open_as(ways[i]);
        make_destinations(i);
        cr_assert_eq(load_all(NULL), 0, "%s: %s", ways[i], error.message);
        expect_loaded(ways[i]);
        free_destinations(i);
        /* Bytes that begin or end within an element. */
        for (int64_t at = 0; at < 2; at++) {
            static const int64_t shapes[] = {7, 8}, stride[] = {1};
            uint8_t bytes[8];
            berth_tensor view = *tensor_at(3);
            view.dtype = BERTH_UINT8, view.rank = 1, view.shape = &shapes[at], view.stride = stride;
            view.storage_offset = at;
            const berth_destination to = {
                .tensor = &view, .address = bytes, .nbytes = sizeof bytes};
            assert_ok(berth_load_into(checkpoint, &to, 1, NULL, &error));
            cr_expect_eq(memcmp(bytes, (const uint8_t *)elements[3] + at, (size_t)shapes[at]), 0,
                         "%s", ways[i]);
        }
    }
}

/* What was written to the checkpoint's memory is what a storage holds. */
/* It begins within a block that would end in the caller's memory as it does in the file. */
Test(load_into, writes_nothing_in_front_of_the_callers_memory)
{
    enum { BLOCK = 4096, NBYTES = 1 << 17 };
    static const int64_t stride[] = {1};
    uint8_t *memory = aligned_alloc(BLOCK, NBYTES);

    open_as("load.method=direct io.threads=1");
    berth_tensor view = *tensor_at(3);
    size_t skipped = (view.storage->offset + 100) % BLOCK;
    const int64_t shape[] = {NBYTES - (int64_t)skipped};
    view.dtype = BERTH_UINT8, view.rank = 1, view.shape = shape, view.stride = stride;
    view.storage_offset = 100;
    memset(memory, 0x5a, NBYTES);
    const berth_destination to = {
        .tensor = &view, .address = memory + skipped, .nbytes = NBYTES - skipped};
    assert_ok(berth_load_into(checkpoint, &to, 1, NULL, &error));
    for (size_t i = 0; i < skipped; i++)
        cr_assert_eq(memory[i], 0x5a, "%zu", i);
    cr_expect_eq(memcmp(to.address, (const uint8_t *)elements[3] + 100, to.nbytes), 0);
    free(memory);
}

Test(load_into, copies_what_is_memory_already)
{
    open_as("load.method=map");
    uint8_t *data = (uint8_t *)(uintptr_t)berth_tensor_data(checkpoint, tensor_at(3), &error);
    data[77] ^= 0xff;
    ((uint8_t *)elements[3])[77] ^= 0xff;
    make_destinations(0);
    assert_ok(load_all(NULL));
    expect_loaded("map");
    free_destinations(0);
}

Test(load_into, gathers_strided_tensors_and_parts)
{
    const int64_t shape[] = {2, 50000}, stride[] = {1, 3};
    berth_destination some[2];
    int64_t *columns = calloc(100000, 8), part[10];

    open_as("load.method=read");
    berth_tensor strided = *tensor_at(3), few = *tensor_at(3);
    strided.rank = 2, strided.shape = shape, strided.stride = stride;
    const int64_t ten = 10, one = 1;
    few.rank = 1, few.shape = &ten, few.stride = &one, few.storage_offset = 1000;
    some[0] = (berth_destination){.tensor = &strided, .address = columns, .nbytes = 800000};
    some[1] = (berth_destination){.tensor = &few, .address = part, .nbytes = sizeof part};
    assert_ok(berth_load_into(checkpoint, some, 2, NULL, &error));
    const int64_t *all = (const int64_t *)(const void *)elements[3];
    for (size_t i = 0; i < 50000; i++) {
        cr_assert_eq(columns[i], all[3 * i]);
        cr_assert_eq(columns[50000 + i], all[3 * i + 1]);
    }
    cr_expect_eq(memcmp(part, all + 1000, sizeof part), 0);
    free(columns);
}

Test(load_into, gives_the_elements_that_are_stored)
{
    const int64_t ten = 10, one = 1;
    uint32_t stored[10], shown[10];

    open_as("load.method=read");
    berth_tensor negative = *tensor_at(3);
    negative.dtype = BERTH_FLOAT32, negative.flags = BERTH_NEG;
    negative.rank = 1, negative.shape = &ten, negative.stride = &one;
    const berth_destination all = {.tensor = &negative, .address = stored, .nbytes = sizeof stored};
    assert_ok(berth_load_into(checkpoint, &all, 1, NULL, &error));
    assert_ok(berth_tensor_read(checkpoint, &negative, 0, 10, shown, &error));
    cr_expect_eq(memcmp(stored, elements[3], sizeof stored), 0);
    for (size_t i = 0; i < 10; i++)
        cr_expect_eq(shown[i], stored[i] ^ 0x80000000);
}

Test(load_into, tells_what_it_did)
{
    berth_stats stats;
    const berth_params params = {.stats = &stats};

    open_as("load.method=read io.threads=1 io.chunk_nbytes=128MiB");
    make_destinations(0);
    assert_ok(load_all(&params));
    cr_expect_str_eq(stats.method, "read");
    cr_expect_str_eq(stats.reason, "load.method=read");
    cr_expect_gt(stats.n_requests, 0);
    cr_expect_gt(stats.moved_nbytes, stats.requested_nbytes / 2 - 1);
    free_destinations(0);
    cr_expect_eq(berth_load_into(checkpoint, NULL, 0, &params, &error), 0);
    cr_expect_eq(stats.requested_nbytes, 0);
}

/* ---- what is refused ---- */

static void expect_refused(berth_destination destination, const char *why)
{
    cr_expect_eq(berth_load_into(checkpoint, &destination, 1, NULL, &error), BERTH_E_ARGUMENT, "%s",
                 why);
    cr_expect_not_null(strstr(error.message, why), "%s: %s", why, error.message);
}

Test(load_into, refuses_wrong_destinations)
{
    uint8_t few[100];
    berth_tree *tree = berth_tree_new(NULL);
    const berth_storage *other = berth_storage_new(tree, BERTH_UINT8, few, 100, NULL);

    open_as("");
    const berth_tensor *tensor = tensor_at(1);
    const berth_destination good = {.tensor = tensor, .address = few, .nbytes = 1200};
    expect_refused((berth_destination){.address = few, .nbytes = 100}, "neither");
    expect_refused((berth_destination){.tensor = tensor, .storage = tensor->storage}, "and");
    expect_refused((berth_destination){.storage = other, .address = few, .nbytes = 100},
                   "another checkpoint");
    expect_refused((berth_destination){.tensor = tensor, .address = few, .nbytes = 1199},
                   "1200 are needed");
    expect_refused((berth_destination){.tensor = tensor, .nbytes = 1200},
                   "destination 0: \"t1\": data/1: its memory has 0 bytes");
    expect_refused(
        (berth_destination){.tensor = tensor, .address = few, .nbytes = 1200, .is_new = 2},
        "is_new is 2, and must be 0 or 1");
    cr_expect_eq(berth_load_into(checkpoint, &good, SIZE_MAX, NULL, &error), BERTH_E_ARGUMENT);
    berth_tree_free(tree);
}

/* Z10 */
Test(load_into, compares_sums)
{
    size_t nbytes;

    open_as("load.method=read load.check=data");
    uint8_t *bytes = test_read_file(path, &nbytes);
    bytes[tensor_at(5)->storage->offset + 1234] ^= 1;
    test_write_file(path, bytes, nbytes);
    make_destinations(0);
    cr_expect_eq(load_all(NULL), BERTH_E_CHECKSUM, "%s", error.message);
    cr_expect_str_eq(error.record, "data/5");

    /* A part of a storage, where only this call compares CRCs. */
    open_as("load.method=read load.check=none");
    berth_tensor part = *tensor_at(5);
    const int64_t shape[] = {10};
    uint8_t few[10 * sizeof(double)];
    part.rank = 1;
    part.shape = shape;
    const berth_destination to = {.tensor = &part, .address = few, .nbytes = sizeof few};
    berth_config *config = berth_config_new(NULL);
    const berth_params params = {.config = config};
    cr_expect_eq(berth_load_into(checkpoint, &to, 1, NULL, &error), 0, "%s", error.message);
    cr_assert_eq(berth_config_apply(config, "load.check=data", &error), 0);
    cr_expect_eq(berth_load_into(checkpoint, &to, 1, &params, &error), BERTH_E_CHECKSUM);
    cr_expect_str_eq(error.record, "data/5");
    berth_config_free(config);
    free_destinations(0);
    free(bytes);
}

/* The call that compares CRCs is the first that needs the directory. */
Test(load_into, tells_of_a_directory_that_cannot_be_read)
{
    uint32_t word;

    open_as("debug=off load.method=read load.check=none");
    const berth_destination to = {
        .storage = tensor_at(0)->storage, .address = &word, .nbytes = sizeof word};
    cr_assert_eq(truncate(path, (off_t)file_nbytes - 1), 0);
    assert_ok(berth_load_into(checkpoint, &to, 1, NULL, &error));
    cr_expect_eq(
        berth_load_into(checkpoint, &to, 1, only("load.check=data load.method=read", NULL), &error),
        BERTH_E_TRUNCATED, "%s", error.message);
}

/* F2 */
Test(load_into, of_a_file_that_got_shorter_is_an_error_and_no_signal)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        save_tensors("save.storage_alignment=64");
        open_as(ways[i]);
        make_destinations(0);
        cr_assert_eq(truncate(path, 2000000), 0);
        cr_expect_eq(load_all(NULL), BERTH_E_TRUNCATED, "%s: %s", ways[i], error.message);
        cr_expect_eq(strncmp(error.record, "data/", 5), 0, "%s: %s", ways[i], error.message);
        free_destinations(0);
    }
}

static int cancel(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context, (void)done_nbytes, (void)total_nbytes;
    return 1;
}

Test(load_into, is_cancelled_by_its_progress)
{
    const berth_params params = {.progress = cancel};

    open_as("load.method=read " BACK);
    make_destinations(0);
    cr_expect_eq(load_all(&params), BERTH_E_CANCELLED, "%s", error.message);
    free_destinations(0);
}

/* W6 */
Test(load_into, tells_of_no_memory)
{
    uint64_t nth = 0;
    int result;

    open_as("load.method=direct load.check=data io.threads=1");
    make_destinations(0);
    test_memory_watch();
    do {
        test_memory_refuse(++nth, false);
        result = load_all(NULL);
        cr_expect(result == 0 || result == BERTH_E_MEMORY, "%u: %s", (unsigned)nth, error.message);
    } while (result < 0 && nth < 100);
    test_memory_refuse(0, false);
    test_memory_unwatch();
    cr_expect_gt(nth, 2);
    expect_loaded("after failures");
    free_destinations(0);
}
