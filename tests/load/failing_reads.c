/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The nth read of a source fails, or the nth allocation is refused: opening ends with that error
 * and leaves nothing, whatever it was about to look at (W6, F5). Files that make open read by
 * pieces: heads smaller than the pickle, records that are deflated, longer or of a stream.
 */
#include <errno.h>

#include "format/values/value.h"
#include "io/syscalls.h"
#include "tests/support/io/refusals.h"
#include "tests/support/load/archive.h"
#include "tests/support/sources.h"
#include "tests/support/support.h"

struct flaky {
    const uint8_t *bytes;
    uint64_t fails_at;   /* the nth read; 0: none */
    uint64_t refused_at; /* the nth allocation; 0: none */
    uint64_t n_reads;
    uint64_t n_allocations;
};

static int read_flaky(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct flaky *flaky = context;

    if (++flaky->n_reads == flaky->fails_at)
        return -1;
    memcpy(buffer, flaky->bytes + offset, nbytes);
    return 0;
}

struct file {
    const char *name;
    uint8_t *bytes;
    size_t nbytes;
};

/* As a checkpoint, or as an archive of records. */
static int open_flaky(const struct file *file, struct flaky *flaky, const char *options,
                      bool records, berth_error *error)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};
    berth_source source = {.nbytes = file->nbytes, .read = read_flaky, .context = flaky};
    berth_checkpoint *checkpoint = NULL;
    berth_archive *archive = NULL;
    char text[200];

    (void)snprintf(text, sizeof text, "debug=off io.threads=1 %s", options);
    cr_assert_eq(berth_config_apply(config, text, NULL), 0, "%s", text);
    test_memory_watch();
    test_memory_refuse(flaky->refused_at, false);
    int result = records ? berth_archive_open(&source, &call, &archive, error)
                         : berth_open_source(&source, &call, &checkpoint, error);
    cr_assert_eq(result < 0, checkpoint == NULL && archive == NULL);
    berth_close(checkpoint);
    berth_archive_close(archive);
    flaky->n_allocations = test_memory_seen().n_allocations;
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s, %s leaks", file->name, options);
    test_memory_unwatch();
    berth_config_free(config);
    return result;
}

/* What opening says where nothing fails. */
static int open_whole(const struct file *file, const char *options, bool records)
{
    berth_config *config = berth_config_new(NULL);
    berth_params call = {.config = config};
    berth_checkpoint *checkpoint = NULL;
    berth_archive *archive = NULL;

    cr_assert_eq(berth_config_apply(config, "debug=off", NULL), 0);
    cr_assert_eq(berth_config_apply(config, options, NULL), 0);
    int result = records
                     ? test_archive_open_memory(file->bytes, file->nbytes, &call, &archive, NULL)
                     : test_open_memory(file->bytes, file->nbytes, &call, &checkpoint, NULL);
    berth_close(checkpoint);
    berth_archive_close(archive);
    berth_config_free(config);
    return result;
}

/* What opening may do without: the numbers that tell whether records can be placed. */
static bool may_overlook(const char *options, bool records)
{
    return records && !strstr(options, "load.check=headers") && !strstr(options, "load.check=data");
}

/* Fails at 1, 2, 3 … until nothing is left to fail; returns how many did. */
static uint64_t fail_each(const struct file *file, const char *options, bool records, bool memory)
{
    struct flaky flaky = {.bytes = file->bytes};
    berth_error error;
    int wanted = open_flaky(file, &flaky, options, records, &error);
    int failure = memory ? BERTH_E_MEMORY : BERTH_E_CALLBACK;
    uint64_t nth = 0, n_failed = 0;

    cr_expect_eq(wanted, open_whole(file, options, records), "%s, %s: %s", file->name, options,
                 error.message);
    for (bool reached = true; reached; nth++) {
        flaky = (struct flaky){.bytes = file->bytes};
        *(memory ? &flaky.refused_at : &flaky.fails_at) = nth + 1;
        int code = open_flaky(file, &flaky, options, records, &error);
        reached = (memory ? flaky.n_allocations : flaky.n_reads) > nth;
        n_failed += code == failure;
        cr_expect(code == (reached ? failure : wanted) ||
                      (code == wanted && may_overlook(options, records)),
                  "%s, %s, %s %d: %s", file->name, options, memory ? "allocation" : "read",
                  (int)nth + 1, code < 0 ? error.message : "overlooked");
    }
    return n_failed;
}

static void fail_at_every(const struct file *file, const char *const *options, size_t n)
{
    uint64_t n_reads = 0, n_allocations = 0;

    for (size_t i = 0; i < n; i++)
        for (int records = 0; records < 2; records++) {
            n_reads += fail_each(file, options[i], records, false);
            n_allocations += fail_each(file, options[i], records, true);
        }
    printf("%s: %llu reads and %llu allocations failed\n", file->name, (unsigned long long)n_reads,
           (unsigned long long)n_allocations);
    cr_expect_gt(n_reads, n);
}

static const char *const levels[] = {
    "load.check=none",
    "load.check=none load.head_nbytes=1",
    "load.check=directory load.head_nbytes=1",
    "load.check=headers load.head_nbytes=1",
    "load.check=data load.head_nbytes=1",
    "load.calculate_storage_offsets=off load.head_nbytes=1",
    "load.calculate_storage_offsets=off load.check=directory debug=on",
    "load.calculate_storage_offsets=off load.check=data load.head_nbytes=1",
};
enum { N_LEVELS = sizeof levels / sizeof *levels };

static void fail_in_fixture(const char *name)
{
    char path[128];
    struct file file = {.name = name};

    (void)snprintf(path, sizeof path, "tests/data/%s", name);
    file.bytes = test_read_file(path, &file.nbytes);
    fail_at_every(&file, levels, N_LEVELS);
    free(file.bytes);
}

Test(failing_reads, of_files_of_pytorch, .timeout = 100)
{
    fail_in_fixture("torch/small.pt");
    fail_in_fixture("torch/many.pt");
    fail_in_fixture("torch/longer-record.pt");
    fail_in_fixture("torch/deflated-pickle.pt");
    fail_in_fixture("torch/zipped-again.pt");
}

Test(failing_reads, of_old_files, .timeout = 100)
{
    fail_in_fixture("old/views-1.13-stream.pth");
    fail_in_fixture("old/many-1.13-zip.pth");
    fail_in_fixture("old/addresses-1.6-zip.pth");
    fail_in_fixture("old/torchscript-1.13.pt");
}

/* The head ends within each record, one after the other. */
Test(failing_reads, where_the_head_ends_anywhere, .timeout = 100)
{
    struct archive archive = sample();
    struct file file = {.name = "sample"};
    char padding[1400], text[80];

    memset(padding, 'x', sizeof padding);
    for (size_t longer = 0; longer <= sizeof padding; longer += 140) {
        const char *one[] = {text};
        struct archive whole = archive;
        berth_tree *tree = berth_tree_new(NULL);
        bth_pickled pickled;
        berth_error error = {0};
        berth_value *root = berth_make_dict(tree);
        berth_dict_set(root, "pad", berth_make_str(tree, padding, longer));
        cr_assert_eq(bth_pickle_write(root, false, &pickled, &error), 0);
        find_record(&whole, "data.pkl")->bytes = pickled.bytes;
        find_record(&whole, "data.pkl")->nbytes = pickled.nbytes;
        file.bytes = build(&whole, 64, true, NULL, &file.nbytes);
        (void)snprintf(text, sizeof text, "load.check=none load.head_nbytes=512");
        fail_at_every(&file, one, 1);
        free(file.bytes);
        bth_pickled_free(&pickled);
        berth_tree_free(tree);
    }
    free_archive(&archive);
}

/* And within headers, texts and descriptors of the small ones. */
Test(failing_reads, where_the_head_ends_within_a_small_record, .timeout = 100)
{
    /* The descriptor of the longer one is not read with its text. */
    static const char *const versions[] = {"1", "00000000000000000001"};
    struct file file = {.name = "sample"};
    struct archive archive = sample();
    uint64_t n = 0;
    char text[80];

    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        find_record(&archive, ".format_version")->bytes = versions[i];
        find_record(&archive, ".format_version")->nbytes = strlen(versions[i]);
        file.bytes = build(&archive, 64, true, NULL, &file.nbytes);
        for (int head = 512; head < 1000; head += 8) {
            (void)snprintf(text, sizeof text, "load.check=none load.head_nbytes=%d", head);
            n += fail_each(&file, text, false, false);
        }
        free(file.bytes);
    }
    cr_expect_gt(n, 100);
    free_archive(&archive);
}

/* More than the tail, so that head and directory are read apart; and headers longer than the head.
 */
Test(failing_reads, where_headers_lie_beyond_head_and_tail, .timeout = 100)
{
    static const uint32_t alignments[] = {64, 4096, 16384};
    struct archive archive = sample();
    struct file file = {.name = "long"};
    uint8_t *middle = calloc(1, 100000);

    add_record(&archive, "notes", middle, 100000);
    add_text(&archive, "more", "x");
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        struct archive whole = archive;
        char text[16];
        (void)snprintf(text, sizeof text, "%u", alignments[i]);
        find_record(&whole, ".storage_alignment")->bytes = text;
        find_record(&whole, ".storage_alignment")->nbytes = strlen(text);
        file.bytes = build(&whole, alignments[i], true, NULL, &file.nbytes);
        fail_at_every(&file, levels, N_LEVELS);
        free(file.bytes);
    }
    free(middle);
    free_archive(&archive);
}

/* Then it is read by itself. */
Test(failing_reads, where_the_directory_is_longer_than_the_tail, .timeout = 100)
{
    static const char *const options[] = {
        "load.calculate_storage_offsets=off load.check=none load.head_nbytes=1",
        "load.check=none load.head_nbytes=1",
    };
    enum { N_TENSORS = 1200 }; /* an entry has 60 bytes at least */
    static const int64_t shape[] = {1};
    static const float element[1];
    struct file file = {.name = "many"};
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    const berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = element};
    void *bytes;

    for (size_t i = 0; i < N_TENSORS; i++)
        berth_list_append(root, berth_make_tensor(tree, &tensor));
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, &file.nbytes), OF_VALUE(root), NULL, NULL), 0);
    file.bytes = bytes;
    fail_at_every(&file, options, 2);
    berth_free(bytes);
    berth_tree_free(tree);
}

/* Without large pages for them values lie in small pieces. */
Test(failing_reads, values_of_a_long_pickle_need_no_memory_of_one_piece)
{
    enum { N_BYTES = 500000 }; /* five times as many are more than 2 MiB */
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    char *text = malloc(N_BYTES);
    berth_checkpoint *checkpoint;
    berth_error error;
    size_t nbytes, n;
    void *bytes;

    memset(text, 'x', N_BYTES);
    cr_assert_eq(berth_list_append(root, berth_make_str(tree, text, N_BYTES)), 0);
    cr_assert_eq(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(root), NULL, NULL), 0);
    bth_system.mmap = refused_mmap;
    cr_assert_eq(open_with(bytes, nbytes, "load.check=none", NULL, &checkpoint, &error), 0, "%s",
                 error.message);
    bth_system_restore();
    const char *read = berth_as_text(bth_value_item(berth_root(checkpoint), 0), &n);
    cr_assert_eq(n, N_BYTES);
    cr_expect_arr_eq(read, text, N_BYTES);
    berth_close(checkpoint);
    berth_free(bytes);
    berth_tree_free(tree);
    free(text);
}
