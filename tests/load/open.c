/* SPDX-License-Identifier: BSD-3-Clause */
/* When offsets are calculated, and when the directory is read; files that are no checkpoints. */
#include "tests/support/load/archive.h"
#include "tests/support/sources.h"

/* ---- calculated or not ---- */

static char logged[2048];

static void keep_log(void *context, const char *message)
{
    size_t used = strlen(logged);

    (void)context;
    (void)snprintf(logged + used, sizeof logged - used, "%s%s", used > 0 ? "\n" : "", message);
}

static void expect_calculated(const struct archive *archive, const char *options, bool calculated,
                              const char *log)
{
    size_t nbytes;
    uint8_t *file = build(archive, 64, true, NULL, &nbytes);
    berth_checkpoint *checkpoint;
    berth_stats stats;
    berth_info info;
    berth_error error;

    logged[0] = 0;
    berth_set_log(keep_log, NULL);
    cr_assert_eq(open_with(file, nbytes, options, &stats, &checkpoint, &error), 0, "%s",
                 error.message);
    cr_expect_str_eq(logged, log, "%s", logged);
    cr_expect_eq(stats.calculated_offsets, calculated);
    cr_assert_eq(berth_get_info(checkpoint, &info, &error), 0);
    cr_expect_eq(info.calculated_offsets, calculated);
    char *text = describe(checkpoint);
    cr_expect_str_eq(text, sample_text);
    free(text);
    berth_close(checkpoint);
    berth_set_log(NULL, NULL);
    free(file);
}

Test(open, offsets_are_calculated_where_the_format_version_allows)
{
    struct archive archive = sample();

    expect_calculated(&archive, "", true, "");
    expect_calculated(&archive, "load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
    /* Debug mode has no more to tell. */
    expect_calculated(&archive, "debug=on load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
    free_archive(&archive);
}

Test(open, a_file_without_format_version_falls_back_and_says_so)
{
    struct archive archive = sample();

    remove_record(&archive, ".format_version");
    expect_calculated(&archive, "", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: no .format_version follows data.pkl");
    remove_record(&archive, ".storage_alignment");
    remove_record(&archive, "byteorder");
    expect_calculated(&archive, "debug=on", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: no .format_version follows data.pkl");
    free_archive(&archive);
}

Test(open, a_format_version_of_0_promises_nothing)
{
    struct archive archive = sample();

    *find_record(&archive, ".format_version") = (struct record){".format_version", "0", 1};
    expect_calculated(&archive, "", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: its .format_version is 0");
    free_archive(&archive);
}

Test(open, a_file_without_storage_alignment_has_64)
{
    struct archive archive = sample();

    remove_record(&archive, ".storage_alignment");
    expect_calculated(&archive, "debug=on", true, "");
    free_archive(&archive);
}

Test(open, debug_tells_what_calculating_would_have_got_wrong)
{
    struct archive archive = sample();

    swap_records(&archive, "data/1", "data/2");
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    berth_checkpoint *checkpoint;
    berth_error error;

    free_archive(&archive);
    logged[0] = 0;
    berth_set_log(keep_log, NULL);
    cr_assert_eq(open_with(file, nbytes, "debug=on load.calculate_storage_offsets=off", NULL,
                           &checkpoint, &error),
                 0, "%s", error.message);
    berth_set_log(NULL, NULL);
    cr_expect_str_eq(
        logged,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1108; load.calculate_storage_offsets=off reads it there\n"
        "memory: storages are found through the directory, not by calculated offsets: "
        "load.calculate_storage_offsets=off",
        "%s", logged);
    berth_close(checkpoint);
    free(file);
}

Test(open, info_is_complete_without_the_directory_too)
{
    struct archive archive = sample();
    static const char *const options[] = {"load.check=none", "load.check=directory"};

    add_text(&archive, "notes.txt", "mine");
    add_text(&archive, "data/99", "a storage that nothing names");
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    for (size_t i = 0; i < 2; i++) {
        berth_checkpoint *checkpoint;
        berth_info info;
        berth_error error;
        cr_assert_eq(open_with(file, nbytes, options[i], NULL, &checkpoint, &error), 0);
        cr_assert_eq(berth_get_info(checkpoint, &info, &error), 0, "%s", error.message);
        cr_expect_str_eq(info.archive, "sample");
        cr_expect_str_eq(info.container, "zip");
        cr_expect_eq(info.format_version, 1);
        cr_expect_eq(info.storage_alignment, 64);
        cr_expect_str_eq(info.byteorder, "little");
        cr_expect(info.byteorder_recorded);
        cr_expect_eq(info.nbytes, nbytes);
        cr_expect_eq(info.storages_nbytes, 24 + 24 + 4);
        cr_expect_eq(info.n_records, 11);
        cr_expect_eq(info.n_unknown_records, 2); /* Z11 */
        cr_expect_eq(info.n_storages, 3);
        cr_expect_eq(info.n_tensors, 3);
        cr_expect_eq(info.n_crc32, 11);
        berth_close(checkpoint);
    }
    free(file);
    free_archive(&archive);
}

/* ---- PyTorch's own files ---- */

static uint8_t *fixture(const char *name, size_t *nbytes)
{
    char path[128];

    (void)snprintf(path, sizeof path, "tests/data/%s", name);
    return test_read_file(path, nbytes);
}

static berth_checkpoint *open_fixture(const char *name, const char *options, uint8_t **bytes)
{
    size_t nbytes;
    berth_checkpoint *checkpoint;
    berth_error error;

    *bytes = fixture(name, &nbytes);
    cr_assert_eq(open_with(*bytes, nbytes, options, NULL, &checkpoint, &error), 0, "%s: %s", name,
                 error.message);
    return checkpoint;
}

static void expect_refused(const char *name, const char *options, int code, const char *message)
{
    size_t nbytes;
    uint8_t *bytes = fixture(name, &nbytes);

    expect_failure(bytes, nbytes, options, code, message);
    free(bytes);
}

static void expect_small(berth_checkpoint *checkpoint)
{
    static const float base[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const float transposed[] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
    static const int64_t integers[] = {-2, -1, 0, 1, 2};
    static const uint16_t words[] = {65533, 65534, 65535};
    static const float complex_numbers[] = {0, 10, 1, 11};

    expect_floats(checkpoint, "base", base, 12);
    expect_floats(checkpoint, "tied", base, 12);
    expect_floats(checkpoint, "transposed", transposed, 12);
    expect_floats(checkpoint, "row", base + 4, 4);
    expect_floats(checkpoint, "weight", base, 4);
    expect_floats(checkpoint, "empty", base, 0);
    cr_expect_eq(berth_find_tensor(checkpoint, "base", NULL)->storage,
                 berth_find_tensor(checkpoint, "row", NULL)->storage);
    cr_expect_arr_eq(
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "integers", NULL), NULL),
        integers, sizeof integers);
    cr_expect_arr_eq(
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "words", NULL), NULL), words,
        sizeof words);
    cr_expect_arr_eq(
        berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "complex", NULL), NULL),
        complex_numbers, sizeof complex_numbers);
}

Test(open, files_of_pytorch_are_read_at_every_level)
{
    static const char *const names[] = {"torch/small.pt", "torch/unaligned.pt"};
    static const char *const options[] = {
        "load.check=none", "load.check=directory", "load.check=data",
        "debug=on",        "load.head_nbytes=1",   "load.calculate_storage_offsets=off debug=on"};

    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            uint8_t *bytes;
            berth_checkpoint *checkpoint = open_fixture(names[n], options[i], &bytes);
            expect_small(checkpoint);
            berth_close(checkpoint);
            free(bytes);
        }
}

Test(open, a_file_zipped_again_is_read_through_the_directory_on_request)
{
    uint8_t *bytes;

    expect_refused(
        "torch/zipped-again.pt", "load.check=directory", BERTH_E_OFFSETS,
        "memory: data.pkl at byte 0: the layout puts its header here, first in the file; the "
        "directory has it at byte 119; load.calculate_storage_offsets=off reads it there");
    expect_refused(
        "torch/zipped-again.pt", "debug=on", BERTH_E_OFFSETS,
        "memory: data.pkl at byte 0: the layout puts its header here, first in the file; the "
        "directory has it at byte 119; load.calculate_storage_offsets=off reads it there");
    expect_refused("torch/deflated-pickle.pt", "debug=on", BERTH_E_OFFSETS,
                   "memory: data.pkl at byte 64: the layout puts its data here, at the first "
                   "multiple of 64 after the header; its local header puts it at byte 44; "
                   "load.calculate_storage_offsets=off reads it there");
    static const char *const names[] = {"torch/zipped-again.pt", "torch/deflated-pickle.pt"};
    for (size_t i = 0; i < 2; i++) {
        berth_checkpoint *checkpoint =
            open_fixture(names[i], "load.calculate_storage_offsets=off", &bytes);
        expect_small(checkpoint);
        berth_close(checkpoint);
        free(bytes);
        checkpoint = open_fixture(
            names[i], "load.calculate_storage_offsets=off load.check=data debug=on", &bytes);
        expect_small(checkpoint);
        berth_close(checkpoint);
        free(bytes);
    }
}

/* Z9 */
Test(open, deflated_storages_are_refused_with_a_way_out)
{
    expect_refused("torch/deflated.pt", "load.check=directory", BERTH_E_UNSUPPORTED,
                   "memory: data/0 at byte 1479: a deflated storage cannot be mapped or placed; "
                   "unpack the archive and zip it again with `zip -0 -r`");
    expect_refused("torch/deflated.pt", "load.calculate_storage_offsets=off", BERTH_E_UNSUPPORTED,
                   "memory: data/0 at byte 1479: a deflated storage cannot be mapped or placed; "
                   "unpack the archive and zip it again with `zip -0 -r`");
}

/* T1: FORMAT.md 6 */
Test(open, a_record_longer_than_its_elements_is_read_through_the_directory)
{
    static const float after[] = {0, 1, 2, 3};
    static const char *const options[] = {"load.check=directory", "load.check=data", "debug=on",
                                          "load.calculate_storage_offsets=off"};
    uint8_t *bytes;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        berth_checkpoint *checkpoint = open_fixture("torch/longer-record.pt", options[i], &bytes);
        berth_info info;
        expect_floats(checkpoint, "after", after, 4);
        const uint8_t *odd =
            berth_tensor_data(checkpoint, berth_find_tensor(checkpoint, "odd", NULL), NULL);
        cr_assert_not_null(odd);
        cr_expect_arr_eq(odd, ((const uint8_t[]){0, 1, 2, 3}), 4);
        cr_assert_eq(berth_get_info(checkpoint, &info, NULL), 0);
        cr_expect_not(info.calculated_offsets);
        berth_close(checkpoint);
        free(bytes);
    }
}

/* The same where the next record is not where it would have been. */
Test(open, records_behind_a_longer_one_are_read_through_the_directory)
{
    struct archive archive = sample();
    uint8_t longer[27] = {0};
    static const char reason[] = "memory: storages are found through the directory, not by "
                                 "calculated offsets: a record is longer than its elements";

    memcpy(longer, sample_weight, 24);
    *find_record(&archive, "data/0") = (struct record){"data/0", longer, 27};
    expect_calculated(&archive, "", false, reason);
    expect_calculated(&archive, "debug=on", false, reason);
    /* Nothing else is told by debug mode: this difference is known. */
    expect_calculated(&archive, "debug=on load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
    free_archive(&archive);
}

/* Z11: one reading, there too. */
Test(open, a_small_record_behind_a_longer_one_is_told)
{
    struct archive archive = sample();
    size_t nbytes;

    *find_record(&archive, "data/0") = (struct record){"data/0", (uint8_t[27]){0}, 27};
    remove_record(&archive, ".storage_alignment");
    add_text(&archive, ".storage_alignment", "64");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_OFFSETS,
                   "memory: .storage_alignment at byte 1400: the directory has it here, but the "
                   "layout has it before the storages; load.calculate_storage_offsets=off reads it "
                   "here");
    free(file);
    free_archive(&archive);
}

/* Z5: there all local headers are compared. */
Test(open, a_local_header_behind_a_longer_record_is_compared)
{
    enum { SECOND_NAME_AT = 1003 + 30 };
    struct archive archive = sample();
    uint8_t longer[27] = {0};
    size_t nbytes;

    *find_record(&archive, "data/0") = (struct record){"data/0", longer, 27};
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    cr_assert_arr_eq(file + SECOND_NAME_AT, "sample/data/1", 13);
    file[SECOND_NAME_AT] = 'S';
    expect_failure(file, nbytes, "load.check=directory", BERTH_E_ARCHIVE,
                   "memory: data/1 at byte 1003: the local header's name is 'Sample/data/1', the "
                   "directory's 'sample/data/1'");
    free(file);
    free_archive(&archive);
}

/* F5: without memory its storages are not left where they were computed. */
Test(open, no_memory_where_a_record_is_longer)
{
    struct archive archive = sample();
    uint8_t longer[27] = {0};
    size_t nbytes;
    bool reached = true;

    *find_record(&archive, "data/0") = (struct record){"data/0", longer, 27};
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    for (unsigned nth = 1; reached; nth++) {
        berth_checkpoint *checkpoint;
        berth_error error;
        test_memory_watch();
        test_memory_refuse(nth, false);
        int result = test_open_memory(file, nbytes, NULL, &checkpoint, &error);
        reached = test_memory_seen().n_allocations >= nth;
        cr_expect_eq(result, reached ? BERTH_E_MEMORY : 0, "allocation %u: %s", nth, error.message);
        berth_close(checkpoint);
        test_memory_unwatch();
    }
    free(file);
    free_archive(&archive);
}

Test(open, a_checkpoint_without_tensors)
{
    uint8_t *bytes;
    berth_checkpoint *checkpoint = open_fixture("torch/scalar.pt", "debug=on", &bytes);
    int64_t epoch;

    cr_expect(berth_as_int(berth_find(checkpoint, "epoch", NULL), &epoch));
    cr_expect_eq(epoch, 3);
    cr_expect_eq(berth_tensor_count(checkpoint), 0);
    berth_close(checkpoint);
    free(bytes);
}

Test(open, more_storages_than_one_digit_counts)
{
    uint8_t *bytes;
    berth_checkpoint *checkpoint = open_fixture("torch/many.pt", "debug=on", &bytes);
    static const float last[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};

    expect_floats(checkpoint, "layer.11", last, 12);
    berth_close(checkpoint);
    free(bytes);
}

Test(open, older_zips_in_any_order_with_any_keys)
{
    static const char *const names[] = {"old/addresses-1.6-zip.pth", "old/many-1.13-zip.pth"};
    static const float third[] = {2, 3, 4, 5, 6, 7, 8, 9, 10};
    uint8_t *bytes;

    for (size_t i = 0; i < 2; i++) {
        berth_checkpoint *checkpoint = open_fixture(names[i], "debug=on", &bytes);
        expect_floats(checkpoint, "layer.2", third, 9);
        berth_close(checkpoint);
        free(bytes);
    }
}

/* ---- no checkpoints ---- */

/* A checkpoint by its layout, with what makes a program of it behind. */
Test(open, programs_that_follow_the_layout_are_told)
{
#define PROGRAM                                                                                    \
    "memory: a TorchScript archive (code/, constants.pkl): a program, which is never run; its "    \
    "records can be listed, but it has no values to read"
    static const char *const options[] = {"load.check=directory", "load.check=headers",
                                          "load.calculate_storage_offsets=off"};
    struct archive archive = sample();
    size_t nbytes;

    add_text(&archive, "code/a.py", "pass");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes); /* code/ alone is no program */
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_sample(file, nbytes, options[i]);
    free(file);
    add_text(&archive, "constants.pkl", "N.");
    file = build(&archive, 64, true, NULL, &nbytes);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        expect_failure(file, nbytes, options[i], BERTH_E_NOT_CHECKPOINT, PROGRAM);
    free(file);
    free_archive(&archive);
}

Test(open, archives_that_hold_programs_are_told)
{
    expect_refused("old/torchscript-1.13.pt", "", BERTH_E_NOT_CHECKPOINT, PROGRAM);
    expect_refused("old/torchscript-1.13.pt", "load.check=none", BERTH_E_NOT_CHECKPOINT, PROGRAM);
    expect_refused(
        "old/package-1.13.pt", "", BERTH_E_NOT_CHECKPOINT,
        "memory: a torch.package archive (.data/extern_modules, no data.pkl): a program, which is "
        "never run; its records can be listed, but it has no values to read");
    expect_refused("old/tar-0.1.pth", "", BERTH_E_NOT_CHECKPOINT,
                   "memory: a tar file, as PyTorch wrote them before 2017: load it with PyTorch "
                   "(weights_only=False) and save it again");
    expect_refused(
        "old/unknown-1.13-zip.pth", "", BERTH_E_FORBIDDEN,
        "memory: data.pkl at byte 242: global __main__ Unknown is not allowed in a checkpoint "
        "(load.unknown_globals = inert lists such files without running anything)");
}

Test(open, other_files_are_told)
{
    expect_failure("", 0, "", BERTH_E_NOT_CHECKPOINT, "memory: the file is empty");
    expect_failure(
        "{\"a\": 1}", 8, "", BERTH_E_NOT_CHECKPOINT,
        "memory: neither a zip archive nor PyTorch's legacy format: it begins with 7b 22 61 22");
    expect_failure("PK\5\6", 4, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: a zip archive without any record");
    expect_failure("\x1f\x8b\x08", 3, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: compressed by gzip: unpack it first");
    expect_failure(
        "\x1f\x8a\x08", 3, "", BERTH_E_NOT_CHECKPOINT,
        "memory: neither a zip archive nor PyTorch's legacy format: it begins with 1f 8a 08");
    expect_failure("\x80\x04K\x01.", 5, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: a bare pickle, not a PyTorch checkpoint");
    expect_failure(
        "\x02\0\0\0\0\0\0\0{}", 10, "", BERTH_E_NOT_CHECKPOINT,
        "memory: a safetensors file, not a PyTorch checkpoint: `berth convert` makes one of it");
    /* Shorter than the head of one, no object behind the length, and too short or long. */
    static const char *const others[] = {"\x02\0\0\0\0\0\0\0{", "\x02\0\0\0\0\0\0\0[]",
                                         "\x01\0\0\0\0\0\0\0{}", "\x03\0\0\0\0\0\0\0{}"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        char says[] =
            "memory: neither a zip archive nor PyTorch's legacy format: it begins with 0? 00 00 00";
        *strchr(says, '?') = (char)('0' + others[i][0]);
        expect_failure(others[i], i == 0 ? 8 : 10, "", BERTH_E_NOT_CHECKPOINT, says);
    }
    expect_failure("P", 1, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: neither a zip archive nor PyTorch's legacy format: it begins with 50");
}

/* The file is not read beyond its end, whatever lies there. */
Test(open, a_file_that_ends_before_what_tells_a_tar)
{
    char bytes[262] = "";

    memcpy(bytes + 257, "ustar", 5);
    expect_failure(bytes, 262, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: a tar file, as PyTorch wrote them before 2017: load it with PyTorch "
                   "(weights_only=False) and save it again");
    expect_failure(
        bytes, 261, "", BERTH_E_NOT_CHECKPOINT,
        "memory: neither a zip archive nor PyTorch's legacy format: it begins with 00 00 00 00");
    bytes[261] = 'R';
    expect_failure(
        bytes, 262, "", BERTH_E_NOT_CHECKPOINT,
        "memory: neither a zip archive nor PyTorch's legacy format: it begins with 00 00 00 00");
}

Test(open, a_zip_without_data_pkl)
{
    struct archive archive = sample();
    size_t nbytes;

    remove_record(&archive, "data.pkl");
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    expect_failure(file, nbytes, "", BERTH_E_NOT_CHECKPOINT,
                   "memory: a zip archive without data.pkl: not a PyTorch checkpoint");
    free(file);
    free_archive(&archive);
}

Test(open, names_of_files_stand_before_the_message)
{
    char *folder = test_folder_new();
    char *path = test_path(folder, "empty.pt");
    berth_checkpoint *checkpoint;
    berth_error error;
    char expected[256];

    test_write_file(path, "", 0);
    cr_expect_eq(berth_open(path, NULL, &checkpoint, &error), BERTH_E_NOT_CHECKPOINT);
    (void)snprintf(expected, sizeof expected, "%s: the file is empty", path);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(berth_open(folder, NULL, &checkpoint, &error), BERTH_E_NOT_CHECKPOINT);
    (void)snprintf(expected, sizeof expected, "%s: is a folder, not a file", folder);
    cr_expect_str_eq(error.message, expected);
    char *missing = test_path(folder, "missing.pt");
    cr_expect_eq(berth_open(missing, NULL, &checkpoint, &error), BERTH_E_NOT_FOUND);
    (void)snprintf(expected, sizeof expected, "%s: cannot be opened: No such file or directory",
                   missing);
    cr_expect_str_eq(error.message, expected);
    free(missing);
    free(path);
    test_folder_remove(folder);
}

static int failing_read(void *context, void *buffer, size_t nbytes, uint64_t offset)
{
    (void)buffer;
    (void)nbytes;
    (void)offset;
    return *(int *)context;
}

Test(open, a_source_that_fails_is_told)
{
    int result = 5;
    berth_source source = {.nbytes = 4096, .read = failing_read, .context = &result};
    berth_checkpoint *checkpoint;
    berth_error error;

    cr_expect_eq(berth_open_source(&source, NULL, &checkpoint, &error), BERTH_E_CALLBACK);
    cr_expect_null(checkpoint);
    cr_expect_str_eq(error.message,
                     "source: at byte 0: the source did not read 4096 bytes: "
                     "Input/output error",
                     "%s", error.message);
}

/* W6 */
Test(open, every_failing_allocation_is_a_clean_error)
{
    struct archive archive = sample();
    size_t nbytes;
    uint8_t *file = build(&archive, 64, true, NULL, &nbytes);
    static const char *const options[] = {"load.check=data", "load.calculate_storage_offsets=off"};

    for (size_t i = 0; i < 2; i++) {
        uint64_t nth = 0;
        bool failed = true;
        while (failed) {
            berth_checkpoint *checkpoint;
            berth_error error;
            berth_config *config = berth_config_new(NULL);
            cr_assert_eq(berth_config_apply(config, options[i], NULL), 0);
            berth_params call = {.config = config};
            test_memory_watch();
            test_memory_refuse(++nth, false);
            failed = test_open_memory(file, nbytes, &call, &checkpoint, &error) < 0;
            if (failed)
                cr_expect_eq(error.code, BERTH_E_MEMORY, "%s", error.message);
            else
                berth_close(checkpoint);
            cr_expect_eq(test_memory_seen().live_nbytes, 0, "allocation %zu", (size_t)nth);
            test_memory_unwatch();
            berth_config_free(config);
        }
        cr_expect_gt(nth, 10);
    }
    free(file);
    free_archive(&archive);
}
