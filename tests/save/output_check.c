/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Debug mode: every byte is checked before it leaves, to whatever output. A byte that changes
 * between the tiles and the check, a write that is lost, doubled or late, is found, and the error
 * names record and byte.
 */
#include <berth/config.h>
#include <criterion/criterion.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include "base/error.h"
#include "io/file.h"
#include "save/output.h"
#include "save/output_check.h"
#include "tests/support/save/device_storages.h"
#include "tests/support/save/runs.h"
#include "tests/support/scene.h"

static void set_up(void)
{
    begin_model_scene();
}

TestSuite(output_check, .init = set_up, .fini = end_scene);

/* ---- what goes wrong on the way ---- */

typedef enum fault_kind { NONE, FLIPPED, LOST, TWICE, LATE } fault_kind;

/* Stands between the tiles and the check: one write goes wrong. */
struct spoiler {
    bth_output inner;
    fault_kind kind;
    uint64_t at; /* the byte whose write goes wrong */
    uint8_t *held;
    uint64_t held_offset;
    size_t held_nbytes;
};

static int write_one(struct spoiler *spoiler, void *bytes, size_t nbytes, uint64_t offset,
                     berth_error *error)
{
    struct iovec piece = {.iov_base = bytes, .iov_len = nbytes};

    return spoiler->inner.write(spoiler->inner.context, &piece, 1, offset, error);
}

/* In one piece of its own, which direct writes accept. */
static int write_wrongly(struct spoiler *spoiler, const struct iovec *pieces, size_t n_pieces,
                         size_t nbytes, uint64_t offset, berth_error *error)
{
    uint8_t *bytes = aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096), *next = bytes;
    int status = 0;

    for (size_t i = 0; i < n_pieces; next += pieces[i++].iov_len)
        memcpy(next, pieces[i].iov_base, pieces[i].iov_len);
    if (spoiler->kind == LATE) {
        spoiler->held = bytes, spoiler->held_offset = offset, spoiler->held_nbytes = nbytes;
        return 0;
    }
    if (spoiler->kind == FLIPPED)
        bytes[spoiler->at - offset] ^= 0x40;
    if (spoiler->kind != LOST)
        status = write_one(spoiler, bytes, nbytes, offset, error);
    if (spoiler->kind == TWICE && status == 0)
        status = write_one(spoiler, bytes, nbytes, offset, error);
    free(bytes);
    return status;
}

static int write_held(struct spoiler *spoiler, berth_error *error)
{
    if (!spoiler->held)
        return 0;
    int status =
        write_one(spoiler, spoiler->held, spoiler->held_nbytes, spoiler->held_offset, error);
    free(spoiler->held);
    spoiler->held = NULL;
    return status;
}

static int write_spoiled(void *context, struct iovec *pieces, size_t n_pieces, uint64_t offset,
                         berth_error *error)
{
    struct spoiler *spoiler = context;
    size_t nbytes = 0;

    for (size_t i = 0; i < n_pieces; i++)
        nbytes += pieces[i].iov_len;
    if (spoiler->kind != NONE && offset <= spoiler->at && spoiler->at - offset < nbytes)
        return write_wrongly(spoiler, pieces, n_pieces, nbytes, offset, error);
    if (spoiler->inner.write(spoiler->inner.context, pieces, n_pieces, offset, error) < 0)
        return error->code;
    return spoiler->kind == LATE && spoiler->inner.in_order ? write_held(spoiler, error) : 0;
}

/* Tiles, a fault, the check, the output. */
static int run_checked(const berth_plan *plan, const bth_output *inner, const char *assignments,
                       struct spoiler spoiler, berth_error *error)
{
    struct berth_config config = config_of(assignments);
    bth_run_settings settings = bth_run_settings_of(&config, plan, inner);
    berth_stats stats = {0};

    bth_error_clear(error);
    bth_output_check *check = bth_output_check_new(plan, inner, error);
    cr_assert(check);
    spoiler.inner = bth_output_check_get_output(check);
    bth_output output = spoiler.inner;
    output.write = write_spoiled;
    output.context = &spoiler;
    output.read = NULL;
    output.file = NULL;
    settings.read_back = false;
    if (bth_run(plan, &output, &settings, &stats, error) == 0)
        write_held(&spoiler, error);
    if (error->code == BERTH_OK)
        bth_output_check_finish(check, error);
    free(spoiler.held);
    bth_output_check_free(check);
    return error->code;
}

/* ---- outputs ---- */

typedef enum output_kind { SINK, SINK_IN_ORDER, PIPE, FILE_BUFFERED, FILE_DIRECT } output_kind;

static const struct {
    output_kind kind;
    const char *name;
} kinds[] = {{SINK, "a sink"},
             {SINK_IN_ORDER, "a sink in order"},
             {PIPE, "a pipe"},
             {FILE_BUFFERED, "a file through the page cache"},
             {FILE_DIRECT, "a file, directly"}};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static int accept(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    (void)buffer, (void)offset;
    atomic_fetch_add((_Atomic uint64_t *)context, nbytes);
    return 0;
}

static void *drain(void *context)
{
    char buffer[65536];

    while (read(*(int *)context, buffer, sizeof buffer) > 0)
        ;
    return NULL;
}

/* A save to a new output of this kind. */
static int run_to(output_kind kind, const berth_plan *plan, const char *assignments,
                  struct spoiler spoiler, berth_error *error)
{
    struct berth_config config =
        config_of(kind == FILE_DIRECT ? "save.method=direct" : "save.method=buffered");
    _Atomic uint64_t nbytes = 0;
    const berth_sink sink = {.write = accept, .context = &nbytes, .in_order = kind != SINK};
    bth_output output = bth_output_of_sink(&sink);
    bth_output_file file = {.fd = -1, .direct = {.fd = -1}};
    int ends[2] = {-1, -1};
    pthread_t reader;

    if (kind == PIPE) {
        cr_assert_eq(pipe(ends), 0);
        cr_assert_eq(pthread_create(&reader, NULL, drain, &ends[0]), 0);
        output = bth_output_of_fd(&ends[1]);
    }
    if (kind == FILE_BUFFERED || kind == FILE_DIRECT) {
        ends[1] = open(path, O_RDWR | O_CREAT, 0600);
        output = bth_output_file_begin(&file, ends[1], plan->nbytes, &config);
    }
    int status = run_checked(plan, &output, assignments, spoiler, error);
    bth_direct_close(&file.direct);
    bth_file_close(ends[1]);
    if (kind == PIPE)
        pthread_join(reader, NULL);
    bth_file_close(ends[0]);
    return status;
}

/* ---- a wrong byte ---- */

static void expect_found(const berth_plan *plan, uint64_t at, const char *what,
                         const berth_error *error)
{
    const bth_file_part part = bth_file_part_find(plan, at);
    bool is_end = part.record == plan->n_records;
    bool is_sum = error->code == BERTH_E_CHECKSUM; /* its byte is that of the data, or of the CRC */

    cr_expect_lt(error->code, 0, "%s: byte %llu was not found", what, (unsigned long long)at);
    cr_expect_str_eq(error->record, is_end ? "" : bth_plan_record_name(plan, part.record),
                     "%s: byte %llu: %s", what, (unsigned long long)at, error->message);
    if (is_sum)
        cr_expect(part.kind == BTH_PART_DATA || at - part.range.offset < 20, "%s: %s", what,
                  error->message);
    else
        cr_expect_eq(error->offset, at, "%s: byte %llu: %s", what, (unsigned long long)at,
                     error->message);
}

static const char *const sizes[] = {
    "io.threads=4 io.chunk_nbytes=64",
    "io.threads=1 io.chunk_nbytes=4096",
    "io.threads=4 io.chunk_nbytes=8192",
    "io.threads=3",
};
#define N_SIZES (sizeof sizes / sizeof *sizes)

static unsigned n_points;

/* Every `step`th byte, by each size of tiles in turn. */
static void flip_bytes(const berth_plan *plan, output_kind kind, const char *name, uint64_t step)
{
    berth_error error;

    for (size_t i = 0; i < N_SIZES; i++)
        cr_assert_eq(run_to(kind, plan, sizes[i], (struct spoiler){.kind = NONE}, &error), 0,
                     "%s, %s: %s", name, sizes[i], error.message);
    for (uint64_t at = 0; at < plan->nbytes; at += step, n_points++) {
        bool is_data = bth_file_part_find(plan, at).kind == BTH_PART_DATA;
        const struct spoiler spoiler = {.kind = FLIPPED, .at = at};
        run_to(kind, plan, sizes[at % N_SIZES], spoiler, &error);
        if (plan->compute_crc32 || !is_data)
            expect_found(plan, at, name, &error);
        else
            cr_expect_eq(error.code, BERTH_OK, "%s", error.message);
    }
}

static void flip_sample_bytes(const char *assignments)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];

    sample_records(bytes, records);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, assignments);
    for (size_t i = 0; i < N_KINDS; i++)
        flip_bytes(plan, kinds[i].kind, kinds[i].name, kinds[i].kind == SINK ? 7 : 101);
    berth_plan_free(plan);
    free(bytes);
}

Test(output_check, a_wrong_byte_is_found_and_named_before_any_output)
{
    n_points = 0;
    flip_sample_bytes("save.compute_crc32=on");
    flip_sample_bytes("save.compute_crc32=off");
    flip_sample_bytes("save.storage_alignment=4096");
    printf("wrong bytes tried: %u\n", n_points);
    cr_assert_geq(n_points, 12000);
}

/* Every byte of headers, descriptors, directory and end. */
Test(output_check, every_wrong_byte_beside_the_data_is_found)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    berth_error error;

    sample_records(bytes, records);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, "");
    for (uint64_t at = 0; at < plan->nbytes; at++) {
        const struct spoiler spoiler = {.kind = FLIPPED, .at = at};
        if (bth_file_part_find(plan, at).kind == BTH_PART_DATA)
            continue;
        run_to(SINK_IN_ORDER, plan, sizes[at % N_SIZES], spoiler, &error);
        expect_found(plan, at, "a sink in order", &error);
    }
    berth_plan_free(plan);
    free(bytes);
}

/* ---- a wrong write ---- */

Test(output_check, a_write_that_is_lost_doubled_or_late_is_found)
{
    static const struct {
        fault_kind kind;
        const char *name, *says, *says_in_order;
    } faults[] = {{LOST, "lost", "was never written", "is the next in order"},
                  {TWICE, "doubled", "written", "is the next in order"} /* or the CRC differs */,
                  {LATE, "late", NULL, "is the next in order"}};
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    berth_error error;

    sample_records(bytes, records);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, "");
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        for (uint64_t at = 0; at < plan->nbytes - BTH_ZIP_END_NBYTES; at += 211)
            for (size_t j = 0; j < N_KINDS; j++) {
                bool in_order = kinds[j].kind == SINK_IN_ORDER || kinds[j].kind == PIPE;
                if (in_order && at >= plan->tail_offset) /* no write may come after it */
                    continue;
                const char *says = in_order ? faults[i].says_in_order : faults[i].says;
                const struct spoiler spoiler = {.kind = faults[i].kind, .at = at};
                run_to(kinds[j].kind, plan, "io.threads=2 io.chunk_nbytes=4096", spoiler, &error);
                cr_expect(says ? strstr(error.message, says) != NULL : error.code == BERTH_OK,
                          "%s, byte %llu %s: %s", kinds[j].name, (unsigned long long)at,
                          faults[i].name, error.message);
                cr_expect(!in_order || error.record[0] == 0, "no record is at fault: %s",
                          error.record);
            }
    berth_plan_free(plan);
    free(bytes);
}

Test(output_check, what_stands_behind_the_file_must_be_zeros)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    _Atomic uint64_t nbytes = 0;
    const berth_sink sink = {.write = accept, .context = &nbytes};
    const bth_output output = bth_output_of_sink(&sink);
    uint8_t padding[3] = {0, 0, 7};
    struct iovec piece = {.iov_base = padding, .iov_len = 2};
    berth_error error;

    sample_records(bytes, records);
    bth_error_clear(&error);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, "");
    bth_output_check *check = bth_output_check_new(plan, &output, &error);
    const bth_output checked = bth_output_check_get_output(check);
    cr_expect_eq(checked.write(checked.context, &piece, 1, plan->nbytes, &error), 0);
    piece = (struct iovec){.iov_base = padding, .iov_len = 3};
    cr_expect_eq(checked.write(checked.context, &piece, 1, plan->nbytes, &error), BERTH_E_OFFSETS);
    cr_expect_eq(error.offset, plan->nbytes + 2);
    cr_expect_eq(nbytes, 2, "what is wrong does not leave");
    bth_output_check_free(check);
    berth_plan_free(plan);
    free(bytes);
}

Test(output_check, what_is_written_twice_does_not_leave_again)
{
    uint8_t *bytes = sample_bytes(SAMPLE_NBYTES);
    berth_new_record records[N_SAMPLES];
    _Atomic uint64_t nbytes = 0;
    const berth_sink sink = {.write = accept, .context = &nbytes};
    const bth_output output = bth_output_of_sink(&sink);
    berth_error error;

    sample_records(bytes, records);
    bth_error_clear(&error);
    berth_plan *plan = plan_of_records(records, N_SAMPLES, 0, "");
    bth_output_check *check = bth_output_check_new(plan, &output, &error);
    const bth_output checked = bth_output_check_get_output(check);
    const bth_range data = bth_plan_data_range(plan, 0);
    for (int i = 0; i < 2; i++) {
        struct iovec piece = {.iov_base = bytes, .iov_len = data.nbytes / 3 * 2};
        cr_expect_eq(checked.write(checked.context, &piece, 1, data.offset, &error),
                     i == 0 ? 0 : BERTH_E_OFFSETS, "%s", error.message);
    }
    cr_expect_eq(nbytes, data.nbytes / 3 * 2);
    bth_output_check_free(check);
    berth_plan_free(plan);
    free(bytes);
}

/* ---- from devices ---- */

Test(output_check, a_wrong_byte_of_a_save_from_devices_is_found)
{
    struct berth_config config = config_of("");
    device_scene scene;
    berth_error error;

    bth_simulated_set(NULL);
    scene_begin(&scene);
    bth_error_clear(&error);
    berth_plan *plan = bth_plan_make("archive", OF_VALUE(scene.state), &config, &error);
    cr_assert(plan, "%s", error.message);
    cr_assert_gt(plan->n_devices, 0);
    for (size_t i = 0; i < N_KINDS; i++)
        for (uint64_t at = 3; at < plan->nbytes; at += 9973) {
            const struct spoiler spoiler = {.kind = FLIPPED, .at = at};
            run_to(kinds[i].kind, plan, "io.threads=2 io.chunk_nbytes=65536", spoiler, &error);
            expect_found(plan, at, kinds[i].name, &error);
        }
    berth_plan_free(plan);
    scene_end(&scene);
}

/* ---- through the interface ---- */

#define N_BYTES ((size_t)256 * 1024)

/* A record whose function changes another tensor, which is summed but not yet written. */
static int read_and_change_another(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    if (offset == 0)
        ((uint8_t *)context)[7]++;
    memset(buffer, 1, nbytes);
    return 0;
}

static void expect_change_found(const berth_target *target, const char *options, int code)
{
    uint8_t *tensor = sample_bytes(N_BYTES);
    const berth_new_record records[] = {
        {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
        {.name = "data/0", .nbytes = N_BYTES, .data = tensor},
        {.name = "data/1", .nbytes = 10, .read = read_and_change_another, .context = tensor}};
    berth_error error;

    patch(options);
    cr_expect_eq(berth_save_to(target, OF_RECORDS(records, 3, 0), NULL, &error), code, "%s: %s",
                 options, error.message);
    berth_config_unpatch(NULL);
    if (code == BERTH_E_CHECKSUM) {
        cr_expect_str_eq(error.record, "data/0");
        cr_expect(strstr(error.message, "was the tensor changed while it was saved?"), "%s",
                  error.message);
    }
    free(tensor);
}

Test(output_check, a_tensor_that_changes_while_it_is_saved_is_found)
{
    void *bytes;
    size_t nbytes;
    int ends[2];
    pthread_t reader;

    cr_assert_eq(pipe(ends), 0);
    cr_assert_eq(pthread_create(&reader, NULL, drain, &ends[0]), 0);
    expect_change_found(TO_FD(ends[1]), "debug=off", BERTH_OK);
    expect_change_found(TO_FD(ends[1]), "debug=on", BERTH_E_CHECKSUM);
    bth_file_close(ends[1]);
    pthread_join(reader, NULL);
    bth_file_close(ends[0]);
    test_write_file(path, "old", 3);
    expect_change_found(TO_PATH(path), "debug=on save.method=buffered", BERTH_E_CHECKSUM);
    cr_expect(test_file_holds(path, "old", 3), "the old file stays");
    expect_change_found(TO_MEMORY(&bytes, &nbytes), "debug=on", BERTH_E_CHECKSUM);
}
