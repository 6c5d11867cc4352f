/* SPDX-License-Identifier: BSD-3-Clause */
/* A file whose parts several runs write is the file of one run. */
#include "format/checksum.h"
#include "format/values/value.h"
#include "save/output_check.h"
#include "tests/support/save/runs.h"

enum { BLOCK_NBYTES = 512, MAX_PARTS = 64 };

typedef struct parts_scene {
    const berth_plan *plan;
    const uint8_t *expected;
    uint8_t *memory;
    bth_output output;
    bth_present present[MAX_PARTS];
    bth_range ranges[MAX_PARTS + 1];
    bth_run_parts parts;
} parts_scene;

/* Any output, in blocks. */
static bth_output blocks_of(uint8_t *memory)
{
    bth_output output = bth_output_of_memory(memory);

    output.constraints = (bth_output_constraints){
        .block_nbytes = BLOCK_NBYTES, .memory_alignment = 1, .min_zero_copy_nbytes = BLOCK_NBYTES};
    return output;
}

/* Every other group of whole blocks of each record is the other process's. */
static void share_out(parts_scene *scene, uint64_t group_nbytes)
{
    const berth_plan *plan = scene->plan;
    uint64_t at = 0;
    size_t n = 0;

    for (size_t i = 0; i < plan->n_records; i++) {
        bth_range data = bth_plan_data_range(plan, i);
        uint64_t begin = (data.offset + BLOCK_NBYTES - 1) / BLOCK_NBYTES * BLOCK_NBYTES;
        uint64_t end = (data.offset + data.nbytes) / BLOCK_NBYTES * BLOCK_NBYTES;
        for (; begin + group_nbytes <= end && n < MAX_PARTS; begin += 2 * group_nbytes) {
            scene->present[n] = (bth_present){.record = i, .range = {begin, group_nbytes}};
            if (begin > at)
                scene->ranges[scene->parts.n_ranges++] = (bth_range){at, begin - at};
            at = begin + group_nbytes;
            n++;
        }
    }
    scene->ranges[scene->parts.n_ranges++] = (bth_range){at, plan->tail_offset - at};
    scene->parts.present = scene->present;
    scene->parts.n_present = n;
    scene->parts.ranges = scene->ranges;
}

/* The other process's run: a plan of parts alone. */
static void write_the_others(parts_scene *scene, unsigned n_workers, uint64_t tile_nbytes)
{
    struct berth_config config =
        config_of(scene->plan->compute_crc32 ? "" : "save.compute_crc32=0");
    bth_range ranges[MAX_PARTS];
    uint32_t crc32s[MAX_PARTS];
    const bth_run_settings settings = {.n_workers = n_workers,
                                       .tile_nbytes = tile_nbytes,
                                       .parts = {ranges, scene->parts.n_present, NULL, 0},
                                       .crc32s = crc32s};
    berth_stats stats = {0};
    berth_error error;

    bth_error_clear(&error);
    berth_plan *plan = bth_plan_new("archive", &config, 1, &error);
    plan->is_parts = true;
    for (size_t i = 0; i < scene->parts.n_present; i++) {
        bth_present *present = &scene->present[i];
        const uint8_t *from = scene->expected + present->range.offset;
        const bth_plan_record content = {.data = from, .swap_nbytes = 1, .is_part = true};
        ranges[i] = present->range;
        memcpy(present->start, from, sizeof present->start);
        assert_ok(bth_plan_add_at(plan, "data/0", present->range.offset, present->range.nbytes,
                                  &content, &error));
    }
    assert_ok(bth_plan_close(plan, &error));
    assert_ok(bth_run(plan, &scene->output, &settings, &stats, &error));
    for (size_t i = 0; i < scene->parts.n_present; i++) {
        bth_present *present = &scene->present[i];
        bth_range data = bth_plan_data_range(scene->plan, present->record);
        uint64_t end = present->range.offset + present->range.nbytes;
        present->crc32 = bth_crc32_combine(crc32s[i], 0, data.offset + data.nbytes - end);
    }
    berth_plan_free(plan);
}

static int write_the_rest(parts_scene *scene, unsigned n_workers, uint64_t tile_nbytes,
                          berth_error *error)
{
    const bth_run_settings settings = {.n_workers = n_workers,
                                       .tile_nbytes = tile_nbytes,
                                       .parts = scene->parts,
                                       .read_back = true};
    berth_stats stats = {0};
    bth_output_check *check = bth_output_check_new(scene->plan, &scene->output, error);
    bth_output output = bth_output_check_get_output(check);

    for (size_t i = 0; i < scene->parts.n_present; i++)
        (void)bth_output_check_read_present(check, &scene->parts.present[i], error);
    if (error->code == 0 && bth_run(scene->plan, &output, &settings, &stats, error) == 0)
        (void)bth_output_check_finish(check, error);
    bth_output_check_free(check);
    return error->code;
}

static void begin_parts(parts_scene *scene, const berth_plan *plan, const uint8_t *expected,
                        uint64_t group_nbytes)
{
    uint64_t nbytes = (plan->nbytes + BLOCK_NBYTES - 1) / BLOCK_NBYTES * BLOCK_NBYTES;

    *scene = (parts_scene){.plan = plan, .expected = expected, .memory = malloc(nbytes)};
    memset(scene->memory, 0xEE, nbytes);
    scene->output = blocks_of(scene->memory);
    share_out(scene, group_nbytes);
    cr_assert_gt(scene->parts.n_present, 3);
}

static void check_in_parts(const berth_plan *plan, const uint8_t *expected)
{
    static const uint64_t tiles[] = {BLOCK_NBYTES, 3 * BLOCK_NBYTES, 1 << 20};
    parts_scene scene;
    berth_error error;

    for (unsigned i = 0; i < 3 * 3 * 3; i++) {
        begin_parts(&scene, plan, expected, (uint64_t)BLOCK_NBYTES << (i % 3));
        write_the_others(&scene, i / 9 * 2, tiles[i / 3 % 3]);
        bth_error_clear(&error);
        assert_ok(write_the_rest(&scene, i / 9 * 2, tiles[i / 3 % 3], &error));
        cr_assert_arr_eq(scene.memory, expected, plan->nbytes, "case %u", i);
        free(scene.memory);
    }
}

Test(run_parts, give_the_file_of_one_run)
{
    check_samples(64, true, check_in_parts);
    check_samples(512, true, check_in_parts);
    check_samples(1, false, check_in_parts);
}

/* Debug mode reads what the others wrote, and compares it with the sums that they told. */
static void check_a_wrong_byte_is_found(const berth_plan *plan, const uint8_t *expected)
{
    parts_scene scene;
    berth_error error;

    begin_parts(&scene, plan, expected, BLOCK_NBYTES);
    write_the_others(&scene, 1, 1 << 20);
    scene.memory[scene.present[2].range.offset + 7] ^= 1;
    bth_error_clear(&error);
    cr_assert_eq(write_the_rest(&scene, 1, 1 << 20, &error), BERTH_E_CHECKSUM);
    free(scene.memory);
}

Test(run_parts, a_byte_that_is_not_what_was_told_is_found)
{
    check_samples(64, true, check_a_wrong_byte_is_found);
}
