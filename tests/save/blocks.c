/* SPDX-License-Identifier: BSD-3-Clause */
/* Outputs that take whole blocks only, as direct writes do: the same image, each block once. */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#include "base/error.h"
#include "io/thread_pool.h"
#include "tests/support/save/runs.h"

#define BLOCK 512u
#define MEMORY_ALIGNMENT 8u

/* Memory that takes nothing but whole blocks from aligned pieces, and each only once. */
typedef struct strict {
    uint8_t *bytes;
    uint8_t *n_writes; /* of each block */
    uint64_t nbytes;   /* padded */
    atomic_uint n_bad;
    _Atomic uint64_t n_written; /* blocks */
} strict;

static int write_strict(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                        berth_error *error)
{
    strict *memory = context;

    (void)error;
    for (size_t i = 0; i < n_pieces; i++) {
        uint64_t n = pieces[i].iov_len;
        if (n == 0 || offset % BLOCK || n % BLOCK || offset + n > memory->nbytes ||
            (uintptr_t)pieces[i].iov_base % MEMORY_ALIGNMENT) {
            atomic_fetch_add(&memory->n_bad, 1);
            return 0;
        }
        memcpy(memory->bytes + offset, pieces[i].iov_base, n);
        for (uint64_t block = offset / BLOCK; block < (offset + n) / BLOCK; block++)
            if (++memory->n_writes[block] != 1)
                atomic_fetch_add(&memory->n_bad, 1);
        atomic_fetch_add(&memory->n_written, n / BLOCK);
        offset += n;
    }
    return 0;
}

static int read_strict(void *context, void *buffer, size_t nbytes, uint64_t offset,
                       berth_error *error)
{
    (void)error;
    memcpy(buffer, ((strict *)context)->bytes + offset, nbytes);
    return 0;
}

static void strict_begin(strict *memory, uint64_t nbytes)
{
    *memory = (strict){.nbytes = (nbytes + BLOCK - 1) / BLOCK * BLOCK};
    memory->bytes = malloc(memory->nbytes);
    memory->n_writes = calloc(memory->nbytes / BLOCK, 1);
    memset(memory->bytes, 0xEE, memory->nbytes);
}

static void strict_end(strict *memory)
{
    free(memory->bytes);
    free(memory->n_writes);
}

static size_t min_zero_copy_nbytes = BTH_MIN_ZERO_COPY_NBYTES;

static bth_output strict_output(strict *memory)
{
    return (bth_output){.write = write_strict,
                        .read = read_strict,
                        .context = memory,
                        .constraints = {.min_zero_copy_nbytes = min_zero_copy_nbytes,
                                        .block_nbytes = BLOCK,
                                        .memory_alignment = MEMORY_ALIGNMENT}};
}

static void check_written(const berth_plan *plan, const strict *memory, const uint8_t *expected,
                          const bth_run_settings *settings)
{
    cr_assert_eq(memory->n_bad, 0, "%u writes are no whole blocks, or written twice",
                 memory->n_bad);
    for (uint64_t i = 0; i < memory->nbytes; i++)
        cr_assert_eq(memory->bytes[i], i < plan->nbytes ? expected[i] : 0,
                     "byte %llu of %llu, tiles of %llu, %u workers", (unsigned long long)i,
                     (unsigned long long)plan->nbytes, (unsigned long long)settings->tile_nbytes,
                     settings->n_workers);
    for (uint64_t i = 0; i < memory->nbytes / BLOCK; i++)
        cr_assert_eq(memory->n_writes[i], 1);
}

static berth_stats run(const berth_plan *plan, const uint8_t *expected,
                       const bth_run_settings *settings)
{
    berth_stats facts = {0};
    berth_error error;
    strict memory;

    strict_begin(&memory, plan->nbytes);
    const bth_output output = strict_output(&memory);
    bth_error_clear(&error);
    cr_assert_eq(bth_run(plan, &output, settings, &facts, &error), 0, "%s", error.message);
    cr_assert_eq(facts.moved_nbytes, plan->nbytes, "padding is not counted");
    check_written(plan, &memory, expected, settings);
    strict_end(&memory);
    return facts;
}

/* Tiles of one block and more, also sizes that are cut down to blocks; lent ranges and none. */
static void check_all_runs(const berth_plan *plan, const uint8_t *expected)
{
    static const uint64_t tiles[] = {1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK, 1u << 20};
    static const unsigned workers[] = {0, 1, 2, 4, 8};
    bth_storage_stats stats[N_SAMPLES + 5];

    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++)
        for (size_t j = 0; j < sizeof workers / sizeof *workers; j++)
            for (size_t least = 1; least <= 1u << 20; least <<= 20) {
                const bth_run_settings settings = {.n_workers = workers[j],
                                                   .tile_nbytes = tiles[i],
                                                   .storage_stats = stats,
                                                   .read_back = true};
                min_zero_copy_nbytes = least;
                memset(stats, 0, sizeof stats);
                run(plan, expected, &settings);
                for (size_t k = 0; k < plan->n_records; k++)
                    cr_assert(least == 1 || stats[k].zero_copy_nbytes == 0);
            }
}

Test(blocks, give_the_composed_file_whatever_the_tiles_and_workers)
{
    check_samples(64, true, check_all_runs);
}

Test(blocks, give_the_same_without_crcs_and_at_other_alignments)
{
    check_samples(64, false, check_all_runs);
    check_samples(1, true, check_all_runs);
    check_samples(4096, true, check_all_runs);
}

/* Every position of a descriptor at the border of a block and of a tile, first and last bytes. */
Test(blocks, hold_descriptors_that_straddle_them)
{
    uint8_t *bytes = sample_bytes(4 * BLOCK);

    for (size_t nbytes = 2 * BLOCK; nbytes < 2 * BLOCK + 600; nbytes += nbytes % 64 ? 1 : 8) {
        const berth_new_record records[] = {
            {.name = "data.pkl", .nbytes = nbytes, .data = bytes},
            {.name = "data/0", .nbytes = 1, .data = bytes + 1},
            {.name = "data/1", .nbytes = nbytes, .data = bytes + 2},
        };
        composed file;
        compose(&file, records, 3, 1, true);
        berth_plan *plan =
            plan_of_records(records, 3, BERTH_RECORDS_COMPLETE, "save.storage_alignment=1");
        for (unsigned n_workers = 1; n_workers <= 4; n_workers += 3)
            for (uint64_t tile = BLOCK; tile <= 2 * BLOCK; tile += BLOCK) {
                const bth_run_settings settings = {.n_workers = n_workers, .tile_nbytes = tile};
                run(plan, file.bytes, &settings);
            }
        berth_plan_free(plan);
        free(file.bytes);
    }
    free(bytes);
}

/* With the id and the directory, which begin inside a block; a run of one tile is the measure. */
Test(blocks, hold_the_tail_that_depends_on_all_before_it)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];

    sample_records(bytes, records);
    for (size_t n = 1; n <= N_SAMPLES; n++) {
        berth_plan *plan = plan_of_records(records, n, 0, "");
        uint8_t *written = run_into_memory(plan, &(bth_run_settings){.tile_nbytes = plan->nbytes});
        check_all_runs(plan, written);
        free(written);
        berth_plan_free(plan);
    }
    free(bytes);
}

/* ---- what is lent ---- */

Test(blocks, are_lent_from_aligned_memory_and_copied_from_any_other)
{
    _Alignas(BLOCK) static uint8_t bytes[40 * BLOCK + 1];
    bth_storage_stats stats[2];
    const bth_run_settings settings = {.tile_nbytes = 8 * BLOCK, .storage_stats = stats};

    min_zero_copy_nbytes = BLOCK;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t shift = 0; shift <= 1; shift++) {
        const berth_new_record records[] = {
            {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
            {.name = "data/0", .nbytes = 40 * BLOCK, .data = bytes + shift},
        };
        composed file;
        compose(&file, records, 2, BLOCK, true);
        berth_plan *plan =
            plan_of_records(records, 2, BERTH_RECORDS_COMPLETE, "save.storage_alignment=512");
        memset(stats, 0, sizeof stats);
        run(plan, file.bytes, &settings);
        cr_assert_eq(stats[1].zero_copy_nbytes, shift ? 0 : 40 * BLOCK);
        berth_plan_free(plan);
        free(file.bytes);
    }
}

/* ---- what is kept aside ---- */

typedef struct slow {
    const uint8_t *bytes;
    strict *memory;
    uint64_t until; /* the first tile's data is given when so many blocks are written */
} slow;

static int read_slowly(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    const slow *from = context;

    if (offset == 0)
        while (atomic_load(&from->memory->n_written) < from->until)
            usleep(100);
    memcpy(buffer, from->bytes + offset, nbytes);
    return 0;
}

/*
 * The first of many tiles is rendered when all other blocks are written but one: the block with the
 * descriptor waits, and nothing else does.
 */
Test(blocks, wait_for_a_crc_alone_and_are_written_by_who_completes_it, .timeout = 60)
{
    uint8_t *bytes = sample_bytes(20 * BLOCK);
    berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 10 * BLOCK + 30, .data = bytes},
        {.name = "data/0", .nbytes = 8 * BLOCK, .data = bytes + 1},
    };
    berth_stats facts = {0};
    berth_error error;
    composed file;
    strict memory;

    compose(&file, records, 2, 64, true);
    for (unsigned n_workers = 2; n_workers <= 4; n_workers++) {
        const bth_run_settings settings = {.n_workers = n_workers, .tile_nbytes = BLOCK};
        strict_begin(&memory, file.nbytes);
        slow from = {.bytes = bytes, .memory = &memory};
        records[0].data = NULL;
        records[0].read = read_slowly;
        records[0].context = &from;
        berth_plan *plan = plan_of_records(records, 2, BERTH_RECORDS_COMPLETE, "");
        from.until = plan->tail_offset / BLOCK - 2; /* all of the data but two blocks */
        const bth_output output = strict_output(&memory);
        bth_error_clear(&error);
        cr_assert_eq(bth_run(plan, &output, &settings, &facts, &error), 0, "%s", error.message);
        check_written(plan, &memory, file.bytes, &settings);
        berth_plan_free(plan);
        strict_end(&memory);
    }
    free(file.bytes);
    free(bytes);
}

/* ---- memory ---- */

/* All buffers together stay below the bound, whatever was asked for, down to what is needed. */
Test(blocks, and_tiles_together_keep_to_the_bound_of_memory)
{
    uint8_t *bytes = sample_bytes(1u << 20);
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 1u << 20, .data = bytes}};
    composed file;

    compose(&file, records, 1, 64, true);
    berth_plan *plan = plan_of_records(records, 1, BERTH_RECORDS_COMPLETE, "");
    for (uint64_t bound = 16 * 1024; bound <= 4u << 20; bound *= 2)
        for (unsigned n_workers = 0; n_workers <= 16; n_workers += 4)
            for (uint64_t tile = BLOCK; tile <= 1u << 20; tile *= 16) {
                const bth_run_settings settings = {
                    .n_workers = n_workers, .tile_nbytes = tile, .memory_nbytes = bound};
                berth_stats facts = run(plan, file.bytes, &settings);
                cr_assert_leq(facts.memory_nbytes, bound, "%u workers, tiles of %llu", n_workers,
                              (unsigned long long)tile);
            }
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
}

/* From 4 KiB pages the device takes twice the requests: whole tiles in large ones go first. */
Test(blocks, of_little_memory_are_written_by_fewer_workers)
{
    const size_t mib = 1u << 20;
    uint8_t *bytes = sample_bytes(36 * mib);
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 36 * mib, .data = bytes}};
    static const struct {
        uint64_t bound_nbytes, least_nbytes, most_nbytes;
    } cases[] = {{40, 34, 35}, {30, 26, 27}, {11, 10, 11}, {10, 9, 10}};
    composed file;

    compose(&file, records, 1, 64, true);
    berth_plan *plan = plan_of_records(records, 1, BERTH_RECORDS_COMPLETE, "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const bth_run_settings settings = {
            .n_workers = 8, .tile_nbytes = 4 * mib, .memory_nbytes = cases[i].bound_nbytes * mib};
        uint64_t nbytes = run(plan, file.bytes, &settings).memory_nbytes;
        cr_expect(nbytes >= cases[i].least_nbytes * mib && nbytes <= cases[i].most_nbytes * mib,
                  "of %llu MiB: %llu", (unsigned long long)cases[i].bound_nbytes,
                  (unsigned long long)nbytes);
    }
    berth_plan_free(plan);
    free(file.bytes);
    free(bytes);
}

static bth_run_settings settings_of(const char *assignments, const berth_plan *plan,
                                    uint32_t block_nbytes)
{
    const bth_output output = {.constraints.block_nbytes = block_nbytes};
    const struct berth_config config = config_of(assignments);

    return bth_run_settings_of(&config, plan, &output);
}

Test(blocks, are_written_by_eight_within_64_mib_with_the_plan)
{
    const berth_plan small = {.n_records = 0}, large = {.pickled.nbytes = (size_t)1 << 30};
    const berth_plan some = {.pickled.nbytes = (size_t)24 << 20};

    cr_expect_eq(settings_of("", &small, BLOCK).n_workers, 8);
    cr_expect_eq(settings_of("io.threads=2", &small, BLOCK).n_workers, 2);
    cr_expect_leq(settings_of("", &small, 0).n_workers, bth_processors_count_capped());
    cr_expect_eq(settings_of("", &small, BLOCK).memory_nbytes, 56u << 20);
    cr_expect_eq(settings_of("", &some, BLOCK).memory_nbytes, 32u << 20);
    cr_expect_eq(settings_of("", &large, BLOCK).memory_nbytes, 20u << 20);
    cr_expect_eq(settings_of("io.memory_nbytes=1MiB", &large, BLOCK).memory_nbytes, 1u << 20);
}
