/* SPDX-License-Identifier: BSD-3-Clause */
/* When offsets are calculated, and when the directory is read. */
#include "tests/support/load/archive.h"
#include "tests/support/load/deflated_scene.h"

TestSuite(open, .init = begin_sample, .fini = end_sample);

/* ---- calculated or not ---- */

static char logged[2048];

static void keep_log(void *context, const char *message)
{
    size_t used = strlen(logged);

    (void)context;
    (void)snprintf(logged + used, sizeof logged - used, "%s%s", used > 0 ? "\n" : "", message);
}

static void expect_calculated(const char *options, bool calculated, const char *log)
{
    berth_stats stats;
    berth_info info;

    build(NULL);
    logged[0] = 0;
    berth_set_log(keep_log, NULL);
    assert_ok(berth_open_source(FROM_MEMORY(file, file_nbytes), only(options, &stats), &checkpoint,
                                &error));
    cr_expect_str_eq(logged, log);
    cr_expect_eq(stats.calculated_offsets, calculated);
    cr_assert_eq(berth_get_info(checkpoint, &info, &error), 0);
    cr_expect_eq(info.calculated_offsets, calculated);
    expect_sample_values();
    close_opened();
    berth_set_log(NULL, NULL);
}

Test(open, offsets_are_calculated_where_the_format_version_allows)
{
    expect_calculated("", true, "");
    expect_calculated("load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
    /* Debug mode has no more to tell. */
    expect_calculated("debug=on load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
}

Test(open, a_file_without_format_version_falls_back_and_says_so)
{
    remove_record(".format_version");
    expect_calculated("", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: no .format_version follows data.pkl");
    remove_record(".storage_alignment");
    remove_record("byteorder");
    expect_calculated("debug=on", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: no .format_version follows data.pkl");
}

Test(open, a_format_version_of_0_promises_nothing)
{
    set_text(".format_version", "0");
    expect_calculated("", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: its .format_version is 0");
}

Test(open, a_file_without_storage_alignment_has_64)
{
    remove_record(".storage_alignment");
    expect_calculated("debug=on", true, "");
}

Test(open, debug_tells_what_calculating_would_have_got_wrong)
{
    swap_records("data/1", "data/2");
    build(NULL);
    logged[0] = 0;
    berth_set_log(keep_log, NULL);
    open_file("debug=on load.calculate_storage_offsets=off");
    berth_set_log(NULL, NULL);
    cr_expect_str_eq(
        logged,
        "memory: data/1 at byte 1000: the layout puts its header here, right after data/0; the "
        "directory has it at byte 1108; load.calculate_storage_offsets=off reads it there\n"
        "memory: storages are found through the directory, not by calculated offsets: repacked: "
        "readers that calculate offsets misread this file; `berth convert` mends it");
}

Test(open, info_is_complete_without_the_directory_too)
{
    static const char *const options[] = {"load.check=none", "load.check=directory"};

    add_text("notes.txt", "mine");
    add_text("data/99", "a storage that nothing names");
    build(NULL);
    for (size_t i = 0; i < 2; i++) {
        berth_info info;
        open_file(options[i]);
        assert_ok(berth_get_info(checkpoint, &info, &error));
        cr_expect_str_eq(info.archive, "sample");
        cr_expect_str_eq(info.container, "zip");
        cr_expect_eq(info.format_version, 1);
        cr_expect_eq(info.storage_alignment, 64);
        cr_expect_str_eq(info.byteorder, "little");
        cr_expect(info.byteorder_recorded);
        cr_expect_eq(info.nbytes, file_nbytes);
        cr_expect_eq(info.storages_nbytes, 24 + 24 + 4);
        cr_expect_eq(info.n_records, 11);
        cr_expect_eq(info.n_unknown_records, 2); /* Z11 */
        cr_expect_eq(info.n_storages, 3);
        cr_expect_eq(info.n_tensors, 3);
        cr_expect_eq(info.n_crc32, 11);
    }
}

/* ---- PyTorch's own files ---- */

static void open_fixture(const char *name, const char *options)
{
    read_file(name);
    open_file(options);
}

static void expect_refused(const char *name, const char *options, int code, const char *message)
{
    read_file(name);
    expect_failure(options, code, message);
}

static void expect_small(void)
{
    static const float base[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const float transposed[] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11};
    static const int64_t integers[] = {-2, -1, 0, 1, 2};
    static const uint16_t words[] = {65533, 65534, 65535};
    static const float complex_numbers[] = {0, 10, 1, 11};

    expect_floats("base", base, 12);
    expect_floats("tied", base, 12);
    expect_floats("transposed", transposed, 12);
    expect_floats("row", base + 4, 4);
    expect_floats("weight", base, 4);
    expect_floats("empty", base, 0);
    cr_expect_eq(berth_find_tensor(checkpoint, "base", NULL)->storage,
                 berth_find_tensor(checkpoint, "row", NULL)->storage);
    cr_expect_arr_eq(data_of("integers"), integers, sizeof integers);
    cr_expect_arr_eq(data_of("words"), words, sizeof words);
    cr_expect_arr_eq(data_of("complex"), complex_numbers, sizeof complex_numbers);
}

Test(open, files_of_pytorch_are_read_at_every_level)
{
    static const char *const names[] = {"torch/small.pt", "torch/unaligned.pt"};
    static const char *const options[] = {
        "load.check=none", "load.check=directory", "load.check=data",
        "debug=on",        "load.head_nbytes=1",   "load.calculate_storage_offsets=off debug=on"};

    for (size_t n = 0; n < 2; n++)
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            open_fixture(names[n], options[i]);
            expect_small();
            close_opened();
        }
}

static uint8_t *header_of(const char *name)
{
    uint8_t *at = memmem(file, file_nbytes, name, strlen(name));

    cr_assert_not_null(at);
    return at - 30;
}

/* Z5: also where nothing but the head is looked at. */
Test(open, local_headers_in_the_head_are_taken_apart)
{
    build(NULL);
    header_of("sample/data/0")[28] -= 4; /* its extra fields end within one */
    expect_failure("load.check=none", BERTH_E_ARCHIVE,
                   "memory: at byte 854: a malformed extra field, 59 bytes before the end of the "
                   "extra fields");
    build(NULL);
    header_of("sample/.storage_alignment")[6] |= 1; /* encrypted */
    expect_failure("load.check=none", BERTH_E_ARCHIVE,
                   "memory: .storage_alignment at byte 593: the local header's flags is 2057, the "
                   "directory's 2056");
}

/* What is the reason stays the reason. */
Test(open, a_deflated_pickle_without_format_version)
{
    remove_record(".format_version");
    zip_again("data.pkl");
    logged[0] = 0;
    berth_set_log(keep_log, NULL);
    open_file("");
    berth_set_log(NULL, NULL);
    cr_expect_str_eq(logged, "memory: storages are found through the directory, not by calculated "
                             "offsets: the first record is not a stored data.pkl");
}

/* Z13: debug mode and load.repacked=refuse refuse it, with what differs first. */
Test(open, a_file_zipped_again_is_refused_on_request)
{
    expect_refused("torch/zipped-again.pt", "load.repacked=refuse", BERTH_E_OFFSETS,
                   "memory: data.pkl at byte 0: the layout puts its header here, first in the "
                   "file; the directory has it at byte 119; load.calculate_storage_offsets=off "
                   "reads it there" REPACKED_REFUSED);
    expect_refused("torch/zipped-again.pt", "debug=on", BERTH_E_OFFSETS,
                   "memory: data.pkl at byte 0: the layout puts its header here, first in the "
                   "file; the directory has it at byte 119; load.calculate_storage_offsets=off "
                   "reads it there" REPACKED_REFUSED);
    expect_refused("torch/deflated-pickle.pt", "debug=on", BERTH_E_OFFSETS,
                   "memory: data.pkl at byte 0: the layout has it stored, but it is deflated; "
                   "load.calculate_storage_offsets=off reads it" REPACKED_REFUSED);
}

/* Z13: at every level, and with every kind of statistics. */
Test(open, a_file_zipped_again_is_read_through_the_directory)
{
    static const char *const names[] = {"torch/zipped-again.pt", "torch/deflated-pickle.pt"};
    static const char *const options[] = {
        "",
        "load.check=none",
        "load.check=headers",
        "load.check=data",
        "load.calculate_storage_offsets=off",
        "load.calculate_storage_offsets=off load.check=data debug=on"};

    for (size_t i = 0; i < 12; i++) {
        bool is_debug = strstr(options[i % 6], "debug=on");
        berth_info info;
        logged[0] = 0;
        berth_set_log(keep_log, NULL);
        open_fixture(names[i / 6], options[i % 6]);
        berth_set_log(NULL, NULL);
        cr_expect_not_null(strstr(logged, "repacked: readers that calculate offsets misread this "
                                          "file; `berth convert` mends it"));
        cr_expect_eq(strstr(logged, "the layout") != NULL, is_debug, "%s", logged);
        assert_ok(berth_get_info(checkpoint, &info, &error));
        cr_expect(info.repacked && !info.calculated_offsets);
        expect_small();
    }
}

/* T1: FORMAT.md 6 */
Test(open, a_record_longer_than_its_elements_is_read_through_the_directory)
{
    static const float after[] = {0, 1, 2, 3};
    static const char *const options[] = {"load.check=directory", "load.check=data", "debug=on",
                                          "load.calculate_storage_offsets=off"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        open_fixture("torch/longer-record.pt", options[i]);
        berth_info info;
        expect_floats("after", after, 4);
        const uint8_t *odd = data_of("odd");
        cr_assert_not_null(odd);
        cr_expect_arr_eq(odd, ((const uint8_t[]){0, 1, 2, 3}), 4);
        cr_assert_eq(berth_get_info(checkpoint, &info, NULL), 0);
        cr_expect_not(info.calculated_offsets);
    }
}

/* The same where the next record is not where it would have been. */
Test(open, records_behind_a_longer_one_are_read_through_the_directory)
{
    uint8_t longer[27] = {0};
    static const char reason[] = "memory: storages are found through the directory, not by "
                                 "calculated offsets: a record is longer than its elements";

    memcpy(longer, sample_weight, 24);
    set_record("data/0", longer, 27);
    expect_calculated("", false, reason);
    expect_calculated("debug=on", false, reason);
    /* Nothing else is told by debug mode: this difference is known. */
    expect_calculated("debug=on load.calculate_storage_offsets=off", false,
                      "memory: storages are found through the directory, not by calculated "
                      "offsets: load.calculate_storage_offsets=off");
}

/* Z11: one reading, there too. */
Test(open, a_small_record_behind_a_longer_one_is_told)
{
    set_record("data/0", (uint8_t[27]){0}, 27);
    remove_record(".storage_alignment");
    add_text(".storage_alignment", "64");
    build(NULL);
    expect_failure(
        "load.check=directory load.repacked=refuse", BERTH_E_OFFSETS,
        "memory: .storage_alignment at byte 1400: the directory has it here, but the layout has it "
        "before the storages; load.calculate_storage_offsets=off reads it here" REPACKED_REFUSED);
}

/* Z5: there all local headers are compared. */
Test(open, a_local_header_behind_a_longer_record_is_compared)
{
    enum { SECOND_NAME_AT = 1003 + 30 };
    uint8_t longer[27] = {0};

    set_record("data/0", longer, 27);
    build(NULL);
    cr_assert_arr_eq(file + SECOND_NAME_AT, "sample/data/1", 13);
    file[SECOND_NAME_AT] = 'S';
    expect_failure("load.check=directory", BERTH_E_ARCHIVE,
                   "memory: data/1 at byte 1003: the local header's name is 'Sample/data/1', the "
                   "directory's 'sample/data/1'");
}

/* Other tools write sizes into local headers; the first storage's is looked at where offsets are
   computed, and must not be here. */
Test(open, a_longer_record_whose_local_header_has_its_size)
{
    static const char name[] = "sample/data/0";
    uint8_t longer[27] = {0};

    set_record("data/0", longer, 27);
    build(NULL);
    uint8_t *header = (uint8_t *)memmem(file, file_nbytes, name, sizeof name - 1) - 30;
    header[18] = header[22] = 27;
    open_file("load.check=directory");
}

/* F5: without memory its storages are not left where they were computed. */
Test(open, no_memory_where_a_record_is_longer)
{
    uint8_t longer[27] = {0};

    set_record("data/0", longer, 27);
    build(NULL);
    expect_clean_failing_allocations("debug=off", 1);
}

Test(open, a_checkpoint_without_tensors)
{
    open_fixture("torch/scalar.pt", "debug=on");
    int64_t epoch;

    cr_expect(berth_as_int(berth_find(checkpoint, "epoch", NULL), &epoch));
    cr_expect_eq(epoch, 3);
    cr_expect_eq(berth_tensor_count(checkpoint), 0);
}

Test(open, more_storages_than_one_digit_counts)
{
    open_fixture("torch/many.pt", "debug=on");
    static const float last[] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};

    expect_floats("layer.11", last, 12);
}

Test(open, older_zips_in_any_order_with_any_keys)
{
    static const char *const names[] = {"old/addresses-1.6-zip.pth", "old/many-1.13-zip.pth"};
    static const float third[] = {2, 3, 4, 5, 6, 7, 8, 9, 10};

    for (size_t i = 0; i < 2; i++) {
        open_fixture(names[i], "debug=on");
        expect_floats("layer.2", third, 9);
    }
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

    checkpoint = (berth_checkpoint *)&error;
    cr_expect_eq(berth_open_source(&source, NULL, &checkpoint, &error), BERTH_E_CALLBACK);
    cr_expect_null(checkpoint);
    cr_expect_str_eq(error.message,
                     "source: at byte 0: the source did not read 4096 bytes: Input/output error");
}

/* W6 */
Test(open, every_failing_allocation_is_a_clean_error)
{
    static const char *const options[] = {"load.check=data", "load.calculate_storage_offsets=off"};

    for (size_t i = 0; i < 2; i++) {
        expect_clean_failing_allocations(options[i], 10);
    }
}
