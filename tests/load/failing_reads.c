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
#include "tests/support/load/deflated_scene.h"

TestSuite(failing_reads, .init = begin_sample, .fini = end_sample);

struct flaky {
    const uint8_t *bytes;
    uint64_t fails_at;   /* the nth read; 0: none */
    uint64_t refused_at; /* the nth allocation; 0: none */
    uint64_t n_reads;
    uint64_t n_allocations;
};

static int failed = -1; /* what a read that fails returns */

static int read_flaky(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    struct flaky *flaky = context;

    if (++flaky->n_reads == flaky->fails_at)
        return failed;
    memcpy(buffer, flaky->bytes + offset, nbytes);
    return 0;
}

/* Opened as a checkpoint or as an archive of records, or verified. */
enum { OPENED, RECORDS, VERIFIED, N_USES };

static int open_flaky(struct flaky *flaky, const char *options, int use)
{
    berth_source source = {.nbytes = file_nbytes, .read = read_flaky, .context = flaky};
    berth_archive *archive = NULL;
    char text[200];

    (void)snprintf(text, sizeof text, "io.threads=1 %s", options);
    const berth_params *call = only(text, NULL);
    test_memory_watch();
    test_memory_refuse(flaky->refused_at, false);
    int result = use == RECORDS  ? berth_archive_open(&source, call, &archive, NULL, &error)
                 : use == OPENED ? berth_open_source(&source, call, &checkpoint, &error)
                                 : berth_verify(&source, call, NULL, NULL, NULL, &error);
    cr_assert_eq(use == VERIFIED || result < 0, checkpoint == NULL && archive == NULL);
    close_opened();
    berth_archive_close(archive);
    flaky->n_allocations = test_memory_seen().n_allocations;
    cr_assert_eq(test_memory_seen().live_nbytes, 0, "%s leaks", options);
    test_memory_unwatch();
    return result;
}

/* What opening says where nothing fails. */
static int open_whole(const char *options, int use)
{
    berth_archive *archive = NULL;
    const berth_source *source = FROM_MEMORY(file, file_nbytes);
    int result = use == OPENED ? try_file(options)
                 : use == RECORDS
                     ? berth_archive_open(source, only(options, NULL), &archive, NULL, NULL)
                     : berth_verify(source, only(options, NULL), NULL, NULL, NULL, &error);

    close_opened();
    berth_archive_close(archive);
    return result;
}

/* What opening may do without: the numbers that tell whether records can be placed. What is refused
 * stays refused, whether or not it is damaged, too. */
static bool may_overlook(const char *options, int use, int wanted)
{
    if (use == VERIFIED)
        return wanted < 0;
    return use == RECORDS && !strstr(options, "load.check=headers") &&
           !strstr(options, "load.check=data");
}

/* Failures that say which record was being read. */
static uint64_t n_naming_pickle;

/* Fails at 1, 2, 3 … until nothing is left to fail; returns how many did. */
static uint64_t fail_each(const char *options, int use, bool memory)
{
    struct flaky flaky = {.bytes = file};
    int wanted = open_flaky(&flaky, options, use);
    int failure = memory ? BERTH_E_MEMORY : BERTH_E_CALLBACK;
    uint64_t nth = 0, n_failed = 0;

    cr_expect_eq(wanted, open_whole(options, use), "%s: %s", options, error.message);
    for (bool reached = true; reached; nth++) {
        flaky = (struct flaky){.bytes = file};
        *(memory ? &flaky.refused_at : &flaky.fails_at) = nth + 1;
        int code = open_flaky(&flaky, options, use);
        reached = (memory ? flaky.n_allocations : flaky.n_reads) > nth;
        n_failed += code == failure;
        cr_expect(code != failure || !strstr(error.message, "NEW.pt"),
                  "says how to mend a file: %s", error.message);
        n_naming_pickle += code == failure && strcmp(error.record, "data.pkl") == 0;
        cr_expect(code == (reached ? failure : wanted) ||
                      (code == wanted && may_overlook(options, use, wanted)),
                  "%s, %s %d: %s", options, memory ? "allocation" : "read", (int)nth + 1,
                  code < 0 ? error.message : "overlooked");
    }
    return n_failed;
}

static void fail_uses_at_every(const char *name, const char *const *options, size_t n,
                               int first_use, int end_use)
{
    uint64_t n_reads = 0, n_allocations = 0;

    for (size_t i = 0; i < n; i++)
        for (int use = first_use; use < end_use; use++) {
            n_reads += fail_each(options[i], use, false);
            n_allocations += fail_each(options[i], use, true);
        }
    printf("%s: %llu reads and %llu allocations failed\n", name, (unsigned long long)n_reads,
           (unsigned long long)n_allocations);
    cr_expect_gt(n_reads, n);
}

static void fail_at_every(const char *name, const char *const *options, size_t n)
{
    fail_uses_at_every(name, options, n, OPENED, VERIFIED);
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
    read_file(name);
    fail_at_every(name, levels, N_LEVELS);
}

Test(failing_reads, of_files_of_pytorch)
{
    fail_in_fixture("torch/small.pt");
    fail_in_fixture("torch/many.pt");
    fail_in_fixture("torch/longer-record.pt");
    fail_in_fixture("torch/deflated-pickle.pt");
    fail_in_fixture("torch/zipped-again.pt");
}

/* More is read to say what it is; and of a text in data.pkl that is deflated and long. */
Test(failing_reads, of_what_is_no_checkpoint_and_of_a_long_deflated_pickle)
{
    static const char *const small[] = {"load.head_nbytes=1"};
    static char noise[40001];
    uint32_t state = 1;
    berth_tree *tree = berth_tree_new(NULL);
    bth_pickled pickled;

    free(file);
    file = memset(malloc(5000), 'x', 5000);
    file_nbytes = 5000;
    (void)fail_each(small[0], OPENED, false);
    error = (berth_error){0};
    for (size_t i = 0; i < sizeof noise - 1; i++) {
        state = state * 1664525 + 1013904223;
        noise[i] = (char)('!' + (state >> 24) % 90);
    }
    cr_assert_eq(
        bth_pickle_write(berth_make_str(tree, noise, sizeof noise - 1), false, &pickled, &error),
        0);
    set_record("data.pkl", pickled.bytes, pickled.nbytes);
    zip_again("data.pkl");
    fail_at_every("long deflated pickle", levels, N_LEVELS);
    bth_pickled_free(&pickled);
    berth_tree_free(tree);
}

Test(failing_reads, of_old_files)
{
    fail_in_fixture("old/views-1.13-stream.pth");
    fail_in_fixture("old/many-1.13-zip.pth");
    fail_in_fixture("old/addresses-1.6-zip.pth");
    fail_in_fixture("old/torchscript-1.13.pt");
    /* What follows the last storage is read by itself, where that is long. */
    read_file("old/training-1.13-stream.pth");
    file = realloc(file, file_nbytes + 7);
    memset(file + file_nbytes, 0, 7);
    file_nbytes += 7;
    fail_at_every("bytes behind a legacy file", levels, N_LEVELS);
}

/* The head ends within each record, one after the other. */
Test(failing_reads, where_the_head_ends_anywhere)
{
    static const char *const options[] = {"load.check=none load.head_nbytes=512"};
    char padding[1400];
    bth_pickled pickled;

    memset(padding, 'x', sizeof padding);
    for (size_t longer = 0; longer <= sizeof padding; longer += 140) {
        berth_tree *tree = berth_tree_new(NULL);
        berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
        error = (berth_error){0};
        berth_dict_set(root, "pad", berth_make_str(tree, padding, longer));
        cr_assert_eq(bth_pickle_write(root, false, &pickled, &error), 0);
        set_record("data.pkl", pickled.bytes, pickled.nbytes);
        build(NULL);
        fail_at_every("sample", options, 1);
        bth_pickled_free(&pickled);
        berth_tree_free(tree);
    }
}

/* And within headers, texts and descriptors of the small ones. */
Test(failing_reads, where_the_head_ends_within_a_small_record)
{
    /* The descriptor of the longer one is not read with its text. */
    static const char *const versions[] = {"1", "00000000000000000001"};
    uint64_t n = 0;
    char text[80];

    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        set_text(".format_version", versions[i]);
        build(NULL);
        for (int head = 512; head < 1000; head += 8) {
            (void)snprintf(text, sizeof text, "load.check=none load.head_nbytes=%d", head);
            n += fail_each(text, OPENED, false);
        }
    }
    cr_expect_gt(n, 100);
}

/* More than the tail, so that head and directory are read apart; and headers longer than the head.
 */
Test(failing_reads, where_headers_lie_beyond_head_and_tail)
{
    static const uint32_t alignments[] = {64, 4096, 16384};
    static uint8_t middle[100000];

    add_record("notes", middle, sizeof middle);
    add_text("more", "x");
    for (size_t i = 0; i < sizeof alignments / sizeof *alignments; i++) {
        char text[16];
        (void)snprintf(text, sizeof text, "%u", alignments[i]);
        set_text(".storage_alignment", text);
        build_with(alignments[i], true, NULL);
        fail_at_every("long", levels, N_LEVELS);
    }
    n_naming_pickle = 0; /* of this option, no other step names data.pkl */
    (void)fail_each("load.calculate_storage_offsets=off load.check=none load.head_nbytes=1", OPENED,
                    false);
    cr_expect_eq(n_naming_pickle, 1);
}

/* Then it is read by itself. */
Test(failing_reads, where_the_directory_is_longer_than_the_tail)
{
    static const char *const options[] = {
        "load.calculate_storage_offsets=off load.check=none load.head_nbytes=1",
        "load.check=none load.head_nbytes=1",
    };
    enum { N_TENSORS = 1200 }; /* an entry has 60 bytes at least */
    static const int64_t shape[] = {1};
    static const float element[1];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    const berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 1, .shape = shape, .data = element};

    for (size_t i = 0; i < N_TENSORS; i++)
        berth_list_append(root, berth_make_tensor(tree, &tensor));
    save_file(root, "");
    fail_at_every("many", options, 2);
}

/* Without large pages for them values lie in small pieces. */
Test(failing_reads, values_of_a_long_pickle_need_no_memory_of_one_piece)
{
    enum { N_BYTES = 500000 }; /* five times as many are more than 2 MiB */
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_list(tree);
    char *text = malloc(N_BYTES);
    size_t n;

    memset(text, 'x', N_BYTES);
    cr_assert_eq(berth_list_append(root, berth_make_str(tree, text, N_BYTES)), 0);
    save_file(root, "");
    bth_system.mmap = refused_mmap;
    open_file("load.check=none");
    bth_system_restore();
    const char *read = berth_as_text(bth_value_item(berth_root(checkpoint), 0), &n);
    cr_assert_eq(n, N_BYTES);
    cr_expect_arr_eq(read, text, N_BYTES);
    free(text);
}

#define FOREIGN                                                                                    \
    (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__ ? "save.byteorder=little" : "save.byteorder=big")

/* "t": 48 x 64 floats, transposed. */
static void save_transposed(const char *options)
{
    static const int64_t shape[] = {48, 64}, across[] = {1, 48};
    static float numbers[48 * 64];
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);

    for (int i = 0; i < 48 * 64; i++)
        numbers[i] = (float)i;
    const berth_tensor tensor = {
        .dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .stride = across, .data = numbers};
    berth_dict_set(root, "t", berth_make_tensor(tree, &tensor));
    save_file(root, options);
}

/* Opens the file from `flaky`, in place of what was open; a read of what follows fails, the nth. */
static void open_to_fail(struct flaky *flaky, const char *options, uint64_t nth)
{
    berth_source source = {.nbytes = file_nbytes, .read = read_flaky, .context = flaky};

    *flaky = (struct flaky){.bytes = file};
    berth_close(checkpoint);
    assert_ok(berth_open_source(&source, only(options, NULL), &checkpoint, &error));
    flaky->fails_at = flaky->n_reads + nth;
}

/* From its source to another file: turned, or swapped. */
Test(failing_reads, of_what_is_saved_again)
{
    static const char *const options[] = {"io.threads=1 io.chunk_nbytes=1022", FOREIGN};
    struct flaky flaky;
    uint64_t n_failed = 0;

    save_transposed("");
    for (int use = 0; use < 2; use++)
        for (uint64_t nth = 1, is_over = 0; !is_over; nth++) {
            void *bytes;
            size_t nbytes;
            open_to_fail(&flaky, options[use], nth);
            const berth_value *root = berth_root(checkpoint);
            const berth_content content =
                use == 0 ? berth_of_safetensors(root, NULL, 0) : berth_of_value(root);
            int result = berth_save_to(TO_MEMORY(&bytes, &nbytes), &content,
                                       only(options[use], NULL), &error);
            is_over = flaky.n_reads < flaky.fails_at;
            cr_expect_eq(result, is_over ? 0 : BERTH_E_CALLBACK, "%s, read %d: %s", options[use],
                         (int)nth, error.message);
            if (result == 0)
                berth_free(bytes);
            n_failed += !is_over;
        }
    cr_expect_gt(n_failed, 1);
}

/* And of bytes that begin and end within elements. */
Test(failing_reads, of_elements_of_another_byte_order)
{
    static const int64_t shape[] = {9}, stride[] = {1};
    static const char options[] = "load.method=read io.threads=1";
    struct flaky flaky;

    save_transposed(FOREIGN);
    for (uint64_t nth = 1, is_over = 0; !is_over; nth++) {
        uint8_t bytes[9];
        const float wanted[] = {0, 1, 2};
        open_to_fail(&flaky, options, nth);
        berth_tensor view = *berth_find_tensor(checkpoint, "t", NULL);
        view.dtype = BERTH_UINT8;
        view.rank = 1, view.shape = shape, view.stride = stride, view.storage_offset = 2;
        int result = berth_tensor_read(checkpoint, &view, 0, 9, bytes, &error);
        is_over = flaky.n_reads < flaky.fails_at;
        cr_expect_eq(result, is_over ? 0 : BERTH_E_CALLBACK, "read %d: %s", (int)nth,
                     error.message);
        cr_expect(!is_over || memcmp(bytes, (const uint8_t *)wanted + 2, 9) == 0);
        cr_expect(!is_over || nth == 4);
    }
}

/* Also of what was refused, and of a second object behind the first. */
Test(failing_reads, of_what_is_verified)
{
    static const char *const files[] = {"torch/longer-record.pt", "torch/deflated.pt",
                                        "torch/inert.pt", "old/views-1.13-stream.pth",
                                        "torch/deflated-pickle.pt"};
    static const char *const options[] = {"load.head_nbytes=1",
                                          "load.calculate_storage_offsets=off debug=on"};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        read_file(files[i]);
        if (i == 3) {
            file = realloc(file, 2 * file_nbytes);
            memcpy(file + file_nbytes, file, file_nbytes);
            file_nbytes *= 2;
            fail_at_every(files[i], levels, 1);
        }
        for (int is_disk = 0; is_disk < 2; is_disk++) {
            failed = is_disk ? EIO : -1; /* after EIO the rest is verified, too */
            fail_uses_at_every(files[i], options, 2, VERIFIED, N_USES);
        }
    }
}
