/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/config.h>

#include "tests/support/faults/save_scene.h"

#define LARGE_PAGE (2u << 20)

#define N_LARGE_BYTES 300000

char *link_path, *leftover_path;
uint8_t *bytes;
unsigned n_points;
unsigned n_points_of[11];
bool is_for_ever;

int no_fallocate(int fd, int mode, off_t offset, off_t nbytes)
{
    (void)fd, (void)mode, (void)offset, (void)nbytes;
    errno = EOPNOTSUPP;
    return -1;
}

int save_some(const char *to, size_t nbytes, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = nbytes, .data = bytes},
                                        {.name = "data/1", .nbytes = 17, .data = bytes}};

    return berth_save_to(TO_PATH(to), OF_RECORDS(records, 3, 0), NAMED("archive"), error);
}

int save_by_job(const char *to, uint32_t flags, berth_error *error)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."},
                                        {.name = "data/0", .nbytes = N_BYTES, .data = bytes}};
    berth_job *job;

    if (berth_save_begin(TO_PATH(to), OF_RECORDS(records, 2, 0), flags, NAMED("archive"), &job,
                         error) < 0)
        return error->code;
    int status = berth_job_wait(job, BERTH_JOB_DONE, -1, error);
    berth_job_free(job);
    return status;
}

int save_records(const char *to, berth_error *error)
{
    return save_some(to, N_BYTES, error);
}

int save_values(const char *to, berth_error *error)
{
    const int64_t shape[] = {40, 100}, stride[] = {1, 40};
    berth_tree *tree = berth_tree_new(error);

    if (!tree)
        return error->code;
    berth_value *state = berth_make_dict(tree, BERTH_KIND_ORDERED_DICT);
    berth_storage *storage = berth_storage_new(tree, BERTH_FLOAT32, bytes, 16000, "cpu");
    berth_value *view = berth_make_tensor(tree, &(berth_tensor){.dtype = BERTH_FLOAT32,
                                                                .rank = 2,
                                                                .shape = shape,
                                                                .stride = stride,
                                                                .storage = storage});
    berth_dict_set(state, "weight", view);
    berth_dict_set(state, "tied", view);
    berth_dict_set(state, "bias", test_tensor(tree, BERTH_INT8, bytes, 1, shape + 1));
    berth_dict_set(state, "epoch", berth_make_int(tree, 3));
    int status = berth_save(to, state, NULL, error);
    berth_tree_free(tree);
    return status;
}

int save(const scene *tried, const char *to, berth_error *error)
{
    if (tried->values)
        return save_values(to, error);
    if (tried->job || tried->snapshot)
        return save_by_job(to, tried->snapshot ? BERTH_SAVE_SNAPSHOT : 0, error);
    return tried->large ? save_some(to, N_LARGE_BYTES, error) : save_records(to, error);
}

/* In a large page, if there are any, so that direct writes take them from where they lie. */
static uint8_t *aligned_bytes(void)
{
    uint8_t *sample = sample_bytes(N_LARGE_BYTES);
    void *aligned = NULL;

    cr_assert_eq(posix_memalign(&aligned, LARGE_PAGE, LARGE_PAGE), 0);
    (void)madvise(aligned, LARGE_PAGE, MADV_HUGEPAGE);
    memcpy(aligned, sample, N_LARGE_BYTES);
    free(sample);
    return aligned;
}

void begin_faults(void)
{
    begin_model_scene();
    link_path = test_path(folder, "link.pt");
    leftover_path = temporary_path(folder, "model.pt", 0);
    bytes = aligned_bytes();
    cr_assert_eq(symlink("model.pt", link_path), 0);
    n_points = 0;
    memset(n_points_of, 0, sizeof n_points_of);
}

void end_faults(void)
{
    fault_clear();
    free(link_path), free(leftover_path), free(bytes);
    end_scene();
}

/* In the long form tiles are smaller, so that there are more writes to fail. */
static bool has_small_tiles(const scene *tried)
{
    return test_is_long() && !tried->large;
}

static int scene_patch(const scene *tried, berth_error *error)
{
    if (berth_config_patch(tried->options, error) < 0)
        return error->code;
    return has_small_tiles(tried) ? berth_config_patch("io.chunk_nbytes=1000", error) : 0;
}

static void scene_unpatch(const scene *tried)
{
    berth_config_unpatch(NULL);
    if (has_small_tiles(tried))
        berth_config_unpatch(NULL);
}

bool make_expected(const scene *tried)
{
    berth_error error;

    if (scene_patch(tried, &error) < 0) {
        cr_assert(strstr(error.message, "not part of this version"), "%s", error.message);
        return false;
    }
    free(expected);
    fault_set(FAULT_open, 0, 0, false);
    assert_ok(save(tried, path, &error));
    fault_clear();
    scene_unpatch(tried);
    expected = test_read_file(path, &expected_nbytes);
    cr_assert_gt(expected_nbytes, 16000);
    return true;
}

bool direct_writes_work(void)
{
    berth_stats stats;
    berth_error error;
    const berth_params call = {.stats = &stats};
    const berth_new_record record = {.name = "data.pkl", .nbytes = 4, .data = "\x80\x02N."};

    assert_ok(berth_config_patch("save.method=direct", &error));
    assert_ok(berth_save_to(TO_PATH(path), OF_RECORDS(&record, 1, 0), &call, &error));
    berth_config_unpatch(NULL);
    return strcmp(stats.method, "direct") == 0;
}

void prepare_folder(const scene *tried)
{
    (void)unlink(path);
    (void)unlink(leftover_path);
    if (tried->replaces)
        test_write_file(path, OLD, strlen(OLD));
    if (tried->leftover)
        leave_temporary(leftover_path);
}

/* Nothing but the link, the target if it is there, and the leftover if it could not be removed. */
static void check_nothing_left(const scene *tried, bool with_target, const char *about)
{
    bool leftover = access(leftover_path, F_OK) == 0;

    cr_assert(tried->leftover || !leftover, "%s: something is left behind", about);
    cr_assert_eq(test_folder_count(folder), 1u + with_target + leftover,
                 "%s: something is left behind", about);
}

bool names_path(const berth_error *error, const char *to)
{
    if (error->code == BERTH_E_MEMORY && strncmp(error->message, "out of memory", 13) == 0)
        return true;
    return strncmp(error->message, to, strlen(to)) == 0 && error->message[strlen(to)] == ':';
}

void check_outcome(const scene *tried, int status, const berth_error *error, const char *about)
{
    const char *to = tried->through_link ? link_path : path;

    cr_assert_eq(status, error->code, "%s", about);
    if (status == 0 || status == BERTH_E_NOT_DURABLE) {
        cr_assert(test_file_holds(path, expected, expected_nbytes), "%s: not the new file", about);
        check_nothing_left(tried, true, about);
    } else {
        if (tried->replaces)
            cr_assert(test_file_holds(path, OLD, strlen(OLD)), "%s: not the old file: %s", about,
                      error->message);
        check_nothing_left(tried, tried->replaces, about);
    }
    if (status < 0)
        cr_assert(names_path(error, to), "%s: %s", about, error->message);
    if (status == BERTH_E_NOT_DURABLE)
        cr_assert(strstr(error->message, "in place, but may be lost in a power cut"), "%s",
                  error->message);
}

static void ignore_temporary(void *context, const berth_temporary *temporary)
{
    (void)context, (void)temporary;
}

void clean_folder(void)
{
    cr_assert_eq(
        berth_clean_temporaries(folder, BERTH_CLEAN_REMOVE, 0, ignore_temporary, NULL, NULL), 0);
}

size_t n_open_files(void)
{
    return test_folder_count("/proc/self/fd");
}

bool try_fault(const scene *tried, enum fault_row row, unsigned nth, int system_errno,
               bool for_ever, int *status)
{
    size_t n_open = n_open_files();
    berth_error error;
    char about[200];

    prepare_folder(tried);
    assert_ok(scene_patch(tried, &error));
    fault_set(row, nth, system_errno, for_ever);
    if (tried->no_fallocate && row != FAULT_fallocate)
        bth_system.fallocate = no_fallocate;
    test_memory_watch();
    *status = save(tried, tried->through_link ? link_path : path, &error);
    uint64_t live_nbytes = test_memory_seen().live_nbytes;
    test_memory_unwatch();
    bool hit = atomic_load(&fault.n_hits) > 0;
    fault_clear();
    scene_unpatch(tried);
    snprintf(about, sizeof about, "%s, call %u, %s, %s%s", fault_row_names[row], nth,
             system_errno == FAULT_SHORT ? "short" : strerror(system_errno), tried->options,
             for_ever ? ", for ever" : "");
    check_outcome(tried, *status, &error, about);
    cr_assert_eq(live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    n_points += hit;
    return hit;
}

unsigned try_row(const scene *tried, enum fault_row row, int system_errno, bool for_ever)
{
    unsigned n_failed = 0;
    int status;

    for (unsigned nth = 1; try_fault(tried, row, nth, system_errno, for_ever, &status); nth++)
        n_failed += status < 0;
    return n_failed;
}

float *save_elements(int32_t rank, const int64_t *shape, size_t n_names, const char *const *names)
{
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    int64_t n = 1;

    for (int32_t i = 0; i < rank; i++)
        n *= shape[i];
    float *elements = malloc((size_t)n * sizeof *elements);
    for (int64_t i = 0; i < n; i++)
        elements[i] = (float)i;
    for (size_t i = 0; i < n_names; i++)
        berth_dict_set(root, names[i], test_tensor(tree, BERTH_FLOAT32, elements, rank, shape));
    cr_assert_eq(berth_save(path, root, NULL, NULL), 0);
    berth_tree_free(tree);
    return elements;
}

int use_watched(int (*use)(berth_error *error), const char *about)
{
    size_t n_open = n_open_files();
    berth_error error;

    int status = use(&error);
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s: memory leaks", about);
    cr_assert_eq(n_open_files(), n_open, "%s: a descriptor leaks", about);
    cr_assert_eq(status, error.code, "%s", about);
    if (status < 0)
        cr_assert(names_path(&error, path), "%s: %s", about, error.message);
    return status;
}

static bool use_refused(int (*use)(berth_error *error), unsigned nth, bool always)
{
    test_memory_watch();
    test_memory_refuse(nth, is_for_ever);
    int status = use_watched(use, "no memory");
    bool reached = test_memory_seen().n_allocations >= nth;
    test_memory_unwatch();
    cr_assert(reached || status == 0, "allocation %u", nth);
    cr_assert(!reached || !always || status == BERTH_E_MEMORY, "allocation %u", nth);
    n_points += reached;
    return reached;
}

void use_without_memory(int (*use)(berth_error *error), const char *options, bool always)
{
    cr_assert_eq(berth_config_patch(options, NULL), 0);
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        is_for_ever = for_ever;
        for (unsigned nth = 1; use_refused(use, nth, always);)
            nth++;
    }
    berth_config_unpatch(NULL);
}
