/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * What berth.h lets several threads do at once beside tests/race/load.c, under the thread
 * sanitizer: ranges that are summed first, whole storages, methods, one archive, one plan; and
 * verifications of one file, each with workers of its own.
 */
#include <berth.h>
#include <berth/config.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/values/value.h"
#include "tests/support/race.h"

#define N_TENSORS 12
#define N_ELEMENTS 50000
#define N_THREADS 6

static float elements[N_ELEMENTS];
static char *path;
static uint8_t *file;
static size_t file_nbytes;

/* ---- one checkpoint ---- */

static const berth_tensor *tensor_at(berth_checkpoint *checkpoint, int i)
{
    char name[16];
    berth_error error;

    (void)snprintf(name, sizeof name, "t%d", i % N_TENSORS);
    const berth_value *value = berth_find(checkpoint, name, &error);
    expect(value != NULL, error.message);
    return berth_as_tensor(value);
}

/* With load.check=data a storage is summed before the first range of it is handed out. */
static void *read_ranges(void *checkpoint)
{
    float got[100];
    berth_error error;

    for (int i = 0; i < 2 * N_TENSORS; i++) {
        const berth_tensor *tensor = tensor_at(checkpoint, i);
        expect(berth_tensor_read(checkpoint, tensor, 100 * i, 100, got, &error) == 0,
               error.message);
        expect(memcmp(got, elements + 100 * i, sizeof got) == 0, "a range");
    }
    return NULL;
}

/* Long enough for workers of its own, from memory or not, whichever it is by then. */
static void *read_long_ranges(void *checkpoint)
{
    float *got = malloc(sizeof elements);
    berth_error error;

    for (int i = 0; i < N_TENSORS; i++) {
        const berth_tensor *tensor = tensor_at(checkpoint, 5 * i);
        expect(berth_tensor_read(checkpoint, tensor, 7, N_ELEMENTS - 9, got, &error) == 0,
               error.message);
        expect(memcmp(got, elements + 7, (N_ELEMENTS - 9) * sizeof *got) == 0, "a long range");
    }
    free(got);
    return NULL;
}

static void *ask_storages(void *checkpoint)
{
    berth_storage_stats stats;
    berth_error error;

    for (int i = N_TENSORS; i-- > 0;) {
        const berth_storage *storage = tensor_at(checkpoint, i)->storage;
        const void *data = berth_storage_data(checkpoint, storage, &error);
        expect(data != NULL, error.message);
        expect(memcmp(data, elements, sizeof elements) == 0, "a storage");
        expect(berth_storage_get_stats(checkpoint, storage, &stats, &error) == 0, error.message);
        expect(stats.crc32 != BERTH_CRC_BAD, "its sum");
    }
    return NULL;
}

static int choose(void *context, const berth_storage *storage, berth_storage_choice *choice)
{
    (void)context;
    choice->method =
        berth_storage_get_info(storage)->key[0] % 2 ? BERTH_LOAD_READ : BERTH_LOAD_AUTO;
    return 0;
}

static void *choose_methods(void *checkpoint)
{
    berth_error error;

    for (int i = 0; i < 10; i++)
        expect(berth_set_storage_rules(checkpoint,
                                       &(berth_storage_rule){.choose = choose, .context = NULL}, 1,
                                       &error) == 0,
               error.message);
    return NULL;
}

static void *fetch_some(void *checkpoint)
{
    const berth_selection selection = {.pattern = "t[0-4]"};
    berth_error error;

    expect(berth_load(checkpoint, &selection, NULL, &error) == 0, error.message);
    return NULL;
}

static void *walk(void *checkpoint)
{
    const berth_value *root = berth_root(checkpoint);

    for (size_t i = 0; i < berth_value_count(root); i++)
        expect(berth_as_tensor(bth_value_item(root, i)) != NULL, "a tensor");
    return NULL;
}

/* Fills buffers from several threads at once, as a source must. */
static int read_file(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)context;
    memcpy(buffer, file + offset, nbytes);
    return 0;
}

static void share_checkpoint(const char *options, bool from_source)
{
    static void *(*const roles[])(void *) = {read_ranges,    ask_storages, read_long_ranges,
                                             choose_methods, fetch_some,   walk};
    const berth_source source = {.nbytes = file_nbytes, .read = read_file};
    berth_checkpoint *checkpoint;
    berth_error error;

    expect(berth_config_patch(options, &error) == 0, error.message);
    int status = from_source ? berth_open_source(&source, NULL, &checkpoint, &error)
                             : berth_open(path, NULL, &checkpoint, &error);
    expect(status == 0, error.message);
    expect(berth_config_unpatch(&error) == 0, error.message);
    run_threads(N_THREADS, roles, checkpoint);
    berth_close(checkpoint);
}

/* ---- one archive, one plan ---- */

static void *read_records(void *archive)
{
    static const char *const names[] = {"data/3", "data.pkl", "data/0", "version"};
    uint8_t *bytes = malloc(sizeof elements);
    berth_record record;
    berth_error error;

    for (int i = 0; i < 20; i++) {
        expect(berth_archive_find(archive, names[i % 4], &record, &error) == 0, error.message);
        expect(berth_archive_read(archive, &record, bytes, record.nbytes / 2, record.nbytes / 3,
                                  &error) == 0,
               error.message);
    }
    free(bytes);
    return NULL;
}

static void *ask_plan(void *plan)
{
    berth_record record = {.offset = 0};

    for (uint64_t i = 0, before = 0; berth_plan_at(plan, i, &record) == 0;
         i++, before = record.offset)
        expect(record.offset > before, "a planned record");
    expect(record.offset > 0, "the plan has no record");
    return NULL;
}

static void share_others(void)
{
    static void *(*const readers[])(void *) = {read_records, read_records, read_records,
                                               read_records, read_records, read_records};
    static void *(*const askers[])(void *) = {ask_plan, ask_plan, ask_plan,
                                              ask_plan, ask_plan, ask_plan};
    berth_archive *archive;
    berth_value *root;
    berth_tree *tree = float_tensors(N_TENSORS, elements, N_ELEMENTS, 0, &root);
    berth_error error;

    expect(berth_archive_open(FROM_PATH(path), NULL, &archive, NULL, &error) == 0, error.message);
    run_threads(N_THREADS, readers, archive);
    berth_archive_close(archive);
    berth_plan *plan = berth_plan_new(TO_PATH("model.pt"), OF_VALUE(root), NULL, NULL, &error);
    expect(plan != NULL, error.message);
    run_threads(N_THREADS, askers, plan);
    berth_plan_free(plan);
    berth_tree_free(tree);
}

/* ---- many verifications ---- */

static void count(void *context, const berth_record_verdict *record)
{
    expect(!record->bad && record->crc32 == BERTH_CRC_GOOD, record->name);
    ++*(size_t *)context;
}

static int tick(void *context, uint64_t done_nbytes, uint64_t total_nbytes)
{
    (void)context;
    expect(done_nbytes <= total_nbytes, "more is done than there is");
    return 0;
}

static void *verify(void *options)
{
    berth_config *config = berth_config_new(NULL);
    const berth_params call = {.config = config, .progress = tick};
    berth_error error;
    size_t n = 0;

    expect(config && berth_config_apply(config, options, &error) == 0, "a configuration");
    expect(berth_verify(FROM_PATH(path), &call, count, &n, NULL, &error) == 0, error.message);
    expect(n == N_TENSORS + 6, "as many records as there are");
    berth_config_free(config);
    return NULL;
}

static void verify_together(const char *options)
{
    static void *(*const roles[])(void *) = {verify, verify, verify, verify, verify, verify};

    run_threads(N_THREADS, roles, (void *)(uintptr_t)options);
}

int main(void)
{
    char *folder = test_folder_new();

    for (int i = 0; i < N_ELEMENTS; i++)
        elements[i] = (float)i;
    path = test_path(folder, "model.pt");
    save_float_tensors(path, N_TENSORS, elements, N_ELEMENTS, 0);
    file = test_read_file(path, &file_nbytes);
    share_checkpoint("load.check=data load.method=read io.threads=2 io.chunk_nbytes=65536", false);
    share_checkpoint("load.check=data io.threads=2 io.chunk_nbytes=65536", true);
    share_checkpoint("load.check=data load.method=map io.threads=2", false);
    share_checkpoint("load.method=direct io.threads=2 io.chunk_nbytes=65536", false);
    share_checkpoint("load.check=none io.chunk_nbytes=65536", false);
    share_others();
    verify_together("io.threads=3 io.chunk_nbytes=65536");
    verify_together("io.threads=3 io.chunk_nbytes=65536 load.method=read");
    verify_together("io.threads=2 io.chunk_nbytes=65536 load.method=direct");
    free(path), free(file);
    test_folder_remove(folder);
    return 0;
}
