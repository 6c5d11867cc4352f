/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Writers of a joint save under the thread sanitizer: each window is written while the next one is
 * exchanged; of an object, several parts are sent meanwhile. With a trace, and progress.
 */
#include <berth.h>
#include <berth/config.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/race.h"
#include "tests/support/writer_group.h"

/* Nine windows of 8 MiB: three rounds. */
enum { N_WRITERS = 3, ROWS = 2100, COLUMNS = 8192, THIRD = COLUMNS / N_WRITERS };

static berth_error error;
static writer_group group;
static berth_joint_info info;
static berth_config *config;
static float *columns; /* of zeros: each writer gives them as its own */

static uint64_t done[N_WRITERS]; /* bytes */

static int report(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)total_nbytes;
    *(uint64_t *)context = done_nbytes;
    return 0;
}

static void write_columns(group_seat *seat)
{
    const int64_t first = (int64_t)seat->number * THIRD;
    const int64_t end = seat->number == N_WRITERS - 1 ? COLUMNS : first + THIRD;
    const int64_t starts[] = {0, first}, lengths[] = {ROWS, end - first};
    const berth_slice slice = berth_slice_of("w", starts, lengths, columns);
    const berth_params params = {
        .config = config, .progress = report, .progress_context = &done[seat->number]};

    group_write(seat, &info, &slice, 1, params, seat->context);
}

static void write_all(berth_joint *joint)
{
    group_result results[N_WRITERS] = {{0}};

    group_run(&group, N_WRITERS, write_columns, results, sizeof *results);
    for (size_t i = 0; i < N_WRITERS; i++) {
        expect(results[i].status == 0, results[i].error.message);
        expect(done[i] > 0, "a writer reports no progress");
        expect(berth_joint_add_receipt(joint, results[i].receipt, results[i].nbytes, &error) == 0,
               error.message);
        berth_free(results[i].receipt);
    }
}

static berth_value *outline_new(berth_tree *tree)
{
    const int64_t shape[] = {ROWS, COLUMNS};
    berth_value *outline = berth_make_dict(tree, BERTH_KIND_DICT);

    berth_dict_set(outline, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    return outline;
}

static _Atomic uint64_t sent_nbytes;
static berth_joint *object_joint;

static int send_part(void *context, const void *buffer, size_t nbytes, uint64_t offset)
{
    const uint8_t *bytes = buffer;
    uint64_t sum = 0;

    (void)context, (void)offset;
    for (size_t i = 0; i < nbytes; i++)
        sum += bytes[i];
    sent_nbytes += nbytes + (sum == UINT64_MAX);
    return 0;
}

static void send_columns(group_seat *seat)
{
    const int64_t first = (int64_t)seat->number * THIRD;
    const int64_t end = seat->number == N_WRITERS - 1 ? COLUMNS : first + THIRD;
    const int64_t starts[] = {0, first}, lengths[] = {ROWS, end - first};
    const berth_slice slice = berth_slice_of("w", starts, lengths, columns);
    const berth_joint_object object = {.sink = {.write = send_part},
                                       .part_nbytes = 5 << 20,
                                       .joint = seat->number == 0 ? object_joint : NULL};
    const berth_params params = {.config = config,
                                 .progress = report,
                                 .progress_context = &done[seat->number],
                                 .exchange = group_exchange,
                                 .exchange_context = seat};
    group_result *out = seat->context;

    out->status = berth_joint_send(info.ticket, info.ticket_nbytes, seat->number, &slice, 1,
                                   &object, &params, &out->error);
}

static void send_object(void)
{
    group_result results[N_WRITERS] = {{0}};
    berth_tree *tree = berth_tree_new(NULL);

    expect(berth_joint_begin_object("model.pt", outline_new(tree), N_WRITERS, NULL, &object_joint,
                                    &info, &error) == 0,
           error.message);
    group_run(&group, N_WRITERS, send_columns, results, sizeof *results);
    for (size_t i = 0; i < N_WRITERS; i++)
        expect(results[i].status == 0, results[i].error.message);
    expect(sent_nbytes == info.nbytes, "not each byte was sent once");
    berth_joint_abort(object_joint);
    berth_tree_free(tree);
}

static void save(const char *path)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *outline = outline_new(tree);
    berth_joint *joint;

    expect(berth_joint_begin(path, outline, N_WRITERS, NULL, &joint, &info, &error) == 0,
           error.message);
    write_all(joint);
    expect(berth_joint_finish(joint, &error) == 0, error.message);
    berth_tree_free(tree);
    expect(berth_verify(FROM_PATH(path), NULL, NULL, NULL, NULL, &error) == 0, error.message);
}

int main(void)
{
    char *folder = test_folder_new(), *trace = test_path(folder, "trace.json");
    char *path = test_path(folder, "model.pt");
    char options[5000];

    columns = calloc((size_t)ROWS * (THIRD + N_WRITERS), sizeof *columns);
    config = berth_config_new(&error);
    (void)snprintf(options, sizeof options, "io.threads=2 save.durability=none trace=%s", trace);
    expect(berth_config_apply(config, options, &error) == 0, error.message);
    save(path);
    send_object();
    berth_config_free(config);
    free(columns);
    free(trace);
    free(path);
    test_folder_remove(folder);
    return 0;
}
