/* SPDX-License-Identifier: BSD-3-Clause */
/* Plans: names, order, offsets; pure arithmetic, so sizes cost nothing here. */
#include <criterion/criterion.h>
#include <stdio.h>

#include "base/error.h"
#include "base/memory.h"
#include "save/image.h"
#include "save/plan.h"
#include "tests/support/save/records.h"

static berth_plan *plan_of(const char *archive, const berth_new_record *records, size_t n_records,
                           uint32_t flags, const char *assignments, berth_error *error)
{
    struct berth_config config = config_of(assignments);

    bth_error_clear(error);
    berth_plan *plan =
        bth_plan_make(archive, OF_RECORDS(records, n_records, flags), &config, error);
    cr_assert_eq(plan == NULL, error->code < 0);
    return plan;
}

/* Refused with this sentence. */
static void check_refused(const char *archive, const berth_new_record *records, size_t n_records,
                          uint32_t flags, const char *assignments, const char *message)
{
    berth_error error;

    test_memory_watch();
    plan_of(archive, records, n_records, flags, assignments, &error);
    cr_assert_eq(error.code, BERTH_E_ARGUMENT);
    cr_assert_str_eq(error.message, message);
    cr_assert_eq(test_memory_seen().live_nbytes, 0);
    test_memory_unwatch();
}

static const berth_new_record few[] = {
    {.name = "data.pkl", .nbytes = 100, .data = "?"},
    {.name = "data/0", .nbytes = 1000, .data = "?"},
    {.name = "data/1", .nbytes = 0},
    {.name = "data/x", .nbytes = 5, .data = "?"},
};

/* Offsets of a file that PyTorch 2.13 wrote for these names and sizes under "few". */
Test(plan, records_and_their_offsets_are_pytorchs)
{
    static const struct {
        const char *name;
        uint64_t nbytes, header_offset, offset;
    } expected[] = {
        {"data.pkl", 100, 0, 64},
        {".format_version", 1, 180, 256},
        {".storage_alignment", 2, 273, 384},
        {"byteorder", 6, 402, 512},
        {"data/0", 1000, 534, 640},
        {"data/1", 0, 1656, 1728},
        {"data/x", 5, 1728, 1792},
        {"version", 2, 1813, 1920},
        {".data/serialization_id", 40, 1938, 2048},
    };
    berth_error error;
    berth_plan *plan = plan_of("few", few, 4, 0, "", &error);

    cr_assert_eq(plan->n_records, sizeof expected / sizeof *expected);
    for (size_t i = 0; i < plan->n_records; i++) {
        berth_record record;
        cr_assert_eq(berth_plan_at(plan, i, &record), 0);
        cr_assert_str_eq(record.name, expected[i].name);
        cr_assert_eq(record.nbytes, expected[i].nbytes, "%s", record.name);
        cr_assert_eq(record.header_offset, expected[i].header_offset, "%s: %llu", record.name,
                     (unsigned long long)record.header_offset);
        cr_assert_eq(record.offset, expected[i].offset, "%s: %llu", record.name,
                     (unsigned long long)record.offset);
        cr_assert_eq(record.method, 0);
    }
    berth_record none;
    cr_assert_eq(berth_plan_at(plan, plan->n_records, &none), BERTH_E_NOT_FOUND);
    berth_plan_free(plan);
}

Test(plan, bookkeeping_records_say_what_the_options_say)
{
    static const struct {
        const char *options, *alignment, *byteorder;
    } cases[] = {{"save.storage_alignment=64 save.byteorder=little", "64", "little"},
                 {"save.storage_alignment=1", "1", "little"},
                 {"save.storage_alignment=32768", "32768", "little"}};
    berth_error error;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        berth_plan *plan = plan_of("few", few, 4, 0, cases[i].options, &error);
        cr_assert_str_eq(plan->records[1].data, "1");
        cr_assert_str_eq(plan->records[2].data, cases[i].alignment);
        cr_assert_str_eq(plan->records[3].data, cases[i].byteorder);
        cr_assert_str_eq(plan->records[7].data, "3\n");
        for (size_t j = 0; j < plan->n_records; j++)
            cr_assert_eq(plan->records[j].layout.data_offset % plan->alignment, 0);
        berth_plan_free(plan);
    }
}

Test(plan, complete_records_are_all_there_is_in_their_order)
{
    const berth_new_record records[] = {
        {.name = "version", .nbytes = 2, .data = "3\n"},
        {.name = ".data/serialization_id", .nbytes = 1, .data = "7"},
        {.name = "code/a.py"},
        {.name = "data.pkl", .nbytes = 3, .data = "abc"}};
    berth_error error;
    berth_plan *plan = plan_of("x", records, 4, BERTH_RECORDS_COMPLETE, "", &error);

    cr_assert_eq(plan->n_records, 4);
    for (size_t i = 0; i < 4; i++)
        cr_assert_str_eq(bth_plan_record_name(plan, i), records[i].name);
    cr_assert_eq(plan->id_index, BTH_NO_RECORD);
    cr_assert_eq(plan->tail_offset, plan->directory_offset);
    berth_plan_free(plan);
}

/* No bytes are needed for a plan, so 4 GiB are as cheap as 4. */
Test(plan, sizes_and_offsets_beyond_32_bits_get_a_zip64_extra)
{
    static const uint64_t sizes[] = {0xFFFFFFFE, 0xFFFFFFFF, 0x100000000, 0x100000005};
    static const uint32_t own[] = {0, 20, 20, 20}, next[] = {12, 12, 12, 12};

    for (size_t i = 0; i < 4; i++) {
        const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 4, .data = "?"},
                                            {.name = "data/0", .nbytes = sizes[i], .data = "?"},
                                            {.name = "data/1", .nbytes = 8, .data = "?"}};
        berth_error error;
        berth_plan *plan = plan_of("big", records, 3, 0, "", &error);
        const bth_layout_entry *big = &plan->records[4].layout, *after = &plan->records[5].layout;
        cr_assert_eq(big->zip64_nbytes, own[i]);
        cr_assert_eq(big->descriptor_nbytes, own[i] ? 24 : 16);
        cr_assert_eq(after->header_offset, big->data_offset + sizes[i] + big->descriptor_nbytes);
        cr_assert_eq(after->zip64_nbytes, next[i]);
        cr_assert_eq(after->descriptor_nbytes, 24);
        cr_assert_eq(after->data_offset % 64, 0);
        const bth_plan_record *last = &plan->records[7];
        cr_assert_eq(plan->nbytes, last->central_offset +
                                       bth_layout_central_entry_nbytes(&last->layout) +
                                       BTH_ZIP_END_NBYTES);
        berth_plan_free(plan);
    }
}

Test(plan, what_does_not_fit_63_bits_is_refused)
{
    const berth_new_record records[] = {{.name = "data.pkl", .nbytes = 1, .data = "?"},
                                        {.name = "data/0", .nbytes = INT64_MAX, .data = "?"}};

    check_refused("x", records, 2, BERTH_RECORDS_COMPLETE, "",
                  "data/0 at byte 81: 9223372036854775807 bytes do not fit a file of 2^63 bytes");
    const berth_new_record longest[] = {records[0],
                                        {.name = "data/0", .nbytes = INT64_MAX - 250, .data = "?"}};
    check_refused("x", longest, 2, BERTH_RECORDS_COMPLETE, "",
                  "the file would have more than 2^63 bytes");
}

/* Z8 */
Test(plan, two_records_of_one_name_are_refused)
{
    const berth_new_record twice[] = {
        {.name = "data.pkl"}, {.name = "data/0"}, {.name = "data/1"}, {.name = "data/0"}};
    const berth_new_record added[] = {{.name = "data.pkl"}, {.name = "version"}};
    const berth_new_record cases[] = {{.name = "data.pkl"}, {.name = "data/a"}, {.name = "data/A"}};

    check_refused("x", twice, 4, 0, "", "data/0: two records have this name");
    check_refused("x", added, 2, 0, "", "version: two records have this name");
    check_refused("x", cases, 3, 0, "",
                  "data/A: its name differs from 'data/a' only in capital letters, which PyTorch "
                  "ignores");
}

/* Z8 */
Test(plan, names_that_a_strict_reader_refuses_are_not_written)
{
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"", "the record name: an empty name"},
        {NULL, "the record name: an empty name"},
        {"/a", "the record name: an absolute name: '/a'"},
        {"a/../b", "the record name: a name with a part '..': 'a/../b'"},
        {"a\\b", "the record name: a name with a backslash: 'a\\b'"},
        {"c:/x", "the record name: a name with a drive letter: 'c:/x'"},
        {"c:x", "the record name: a name with a drive letter: 'c:x'"},
        {"c:x/y", "the record name: a name with a drive letter: 'c:x/y'"},
        {"a\nb", "the record name: a name with a control character: 0x0a at its byte 1"},
        {"a\xff", "the record name: a name that is not UTF-8: 0xff at its byte 1"},
        {"code/", "the record name: it ends with a slash: 'code/'"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const berth_new_record records[] = {{.name = "data.pkl"}, {.name = cases[i].name}};
        check_refused("x", records, 2, 0, "", cases[i].message);
    }
    check_refused("a/b", few, 4, 0, "", "the archive name: it contains a slash: 'a/b'");
    check_refused("..", few, 4, 0, "", "the archive name: a name with a part '..': '..'");
    check_refused("", few, 4, 0, "", "the archive name: an empty name");
    check_refused("c:", few, 4, 0, "", "the archive name: a name with a drive letter: 'c:'");
}

Test(plan, a_name_of_more_than_65535_bytes_is_refused)
{
    char *name = malloc(65536);
    const berth_new_record records[] = {{.name = "data.pkl"}, {.name = name}};
    berth_error error;

    memset(name, 'n', 65535);
    name[65535] = '\0';
    plan_of("x", records, 2, 0, "", &error);
    cr_assert_eq(error.code, BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "the name has 65537 bytes, a zip's have at most 65535"));
    name[65533] = '\0';
    berth_plan *plan = plan_of("x", records, 2, 0, "", &error);
    cr_assert(plan, "%s", error.message);
    berth_plan_free(plan);
    free(name);
}

/* What PyTorch opens, tests/peers/unusual.py shows. */
Test(plan, names_that_are_too_long_for_pytorch_are_refused)
{
    static const struct {
        size_t archive_nbytes;  /* of 'a' */
        size_t n_plain, n_wide; /* of the record's: 'n' and then two-byte characters */
        const char *message;    /* NULL: it is taken */
    } cases[] = {
        {510, 1, 0, NULL},
        {511, 1, 0,
         "the archive name: it has 511 bytes, and PyTorch opens no file whose archive name has "
         "more than 510: choose a shorter one"},
        {1, 1000, 0, NULL}, /* cut anywhere, it is text */
        {1, 0, 254, NULL},  /* 510 bytes */
        {1, 1, 254, NULL},  /* 511 */
        {1, 1, 300, NULL},  /* cut between two characters */
        {1, 0, 255, "with the archive's the name has 512 bytes, of which PyTorch keeps 511"},
        {2, 1, 255, "with the archive's the name has 514 bytes, of which PyTorch keeps 511"},
        {510, 0, 1, NULL},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char archive[600] = "", name[1400] = "";
        const berth_new_record records[] = {{.name = "data.pkl"}, {.name = name}};
        berth_error error;
        memset(archive, 'a', cases[i].archive_nbytes);
        memset(name, 'n', cases[i].n_plain);
        for (size_t k = 0; k < cases[i].n_wide; k++)
            strcat(name, "\xc3\xa9");
        berth_plan *plan = plan_of(archive, records, 2, 0, "", &error);
        cr_expect_eq(error.code, cases[i].message ? BERTH_E_ARGUMENT : 0, "%zu: %s", i,
                     error.message);
        cr_expect(!cases[i].message || strstr(error.message, cases[i].message), "%zu: %s", i,
                  error.message);
        berth_plan_free(plan);
    }
}

Test(plan, arguments_that_make_no_archive_are_refused)
{
    const berth_new_record other[] = {{.name = "data/0"}, {.name = "data.pkl"}};
    const berth_new_record nothing[] = {{.name = "data.pkl"}, {.name = "data/0", .nbytes = 1}};
    const berth_new_record aligned[] = {{.name = "data.pkl"},
                                        {.name = ".storage_alignment", .nbytes = 2, .data = "64"}};
    const berth_storage storage = {.nbytes = 2};
    const berth_new_record twice[] = {
        {.name = "data.pkl"}, {.name = "data/0", .nbytes = 2, .data = "64", .storage = &storage}};
    const berth_new_record longer[] = {{.name = "data.pkl"},
                                       {.name = "data/0", .nbytes = 3, .storage = &storage}};
    const char *const sources =
        "data/0: its storage is not the only source of its bytes, or has another size";

    check_refused("x", twice, 2, 0, "", sources);
    check_refused("x", longer, 2, 0, "", sources);
    check_refused("x", NULL, 0, 0, "", "the content has no records");
    check_refused("x", few, 0, BERTH_RECORDS_COMPLETE, "", "the content has no records");
    check_refused("x", few, 4, 12, "", "unknown flags 0x8");
    check_refused("x", other, 2, 0, "", "data/0: the first record must be data.pkl");
    check_refused("x", nothing, 2, 0, "", "data/0: neither data nor read is set");
    check_refused("x", few, 4, 0, "save.byteorder=big",
                  "records are written as they are, their byte order cannot be changed to "
                  "save.byteorder=big");
    check_refused("x", aligned, 2, BERTH_RECORDS_COMPLETE, "save.storage_alignment=128",
                  ".storage_alignment: says 64, save.storage_alignment is 128");
}

Test(plan, the_archive_is_named_after_the_path_as_pytorch_does)
{
    static const char *const cases[][2] = {
        {"model.pt", "model"},
        {"a.b.c.pt", "a.b.c"},
        {"noext", "noext"},
        {"/tmp/x/model.pth", "model"},
        {"folder.d/noext", "noext"},
        {"a\\b.pt", "b"},
        {".hid", "archive"},
        {"...pt", "archive"},
        {"m\xc3\xb6"
         "del.pt",
         "archive"},
        {"m\xc3\xb6/model.pt", "archive"},
        {"", "archive"},
        {NULL, "archive"},
        {"folder/", "archive"},
        {"a\tb.pt", "archive"},
        {"a:b.pt", "a:b"},
        {"a:.pt", "archive"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *name = bth_archive_name_of_path(cases[i][0]);
        cr_assert_str_eq(name, cases[i][1], "%s gives %s", cases[i][0], name);
        bth_release(name);
    }
    for (size_t n = 510; n <= 511; n++) { /* some file systems have such names */
        char path[600] = "";
        memset(path, 'n', n);
        char *name = bth_archive_name_of_path(strcat(path, ".pt"));
        cr_assert_eq(strlen(name), n == 510 ? n : strlen("archive"));
        bth_release(name);
    }
}

Test(plan, finding_by_offset_agrees_with_a_walk)
{
    berth_error error;
    berth_plan *plan = plan_of("few", few, 4, 0, "", &error);

    for (uint64_t offset = 0; offset < plan->nbytes; offset++) {
        size_t i = 0;
        while (i < plan->n_records && plan->records[i].layout.next_offset <= offset)
            i++;
        cr_assert_eq(bth_plan_find_record_by_offset(plan, offset), i);
    }
    berth_plan_free(plan);
}

/* W6 */
Test(plan, no_memory_is_a_clean_error_wherever_it_happens)
{
    berth_new_record records[200];
    char names[200][16];
    struct berth_config config = config_of("");
    uint64_t n_points = 0;

    for (size_t i = 0; i < 200; i++) {
        snprintf(names[i], sizeof names[i], "data/%zu", i);
        records[i] = (berth_new_record){.name = i ? names[i] : "data.pkl"};
    }
    for (int for_ever = 0; for_ever < 2; for_ever++) {
        for (uint64_t nth = 1;; nth++) {
            berth_error error;
            bth_error_clear(&error);
            test_memory_watch();
            test_memory_refuse(nth, for_ever);
            berth_plan *plan = bth_plan_make("x", OF_RECORDS(records, 200, 0), &config, &error);
            berth_plan_free(plan);
            cr_assert_eq(test_memory_seen().live_nbytes, 0);
            test_memory_unwatch();
            if (error.code == BERTH_OK)
                break;
            cr_assert_eq(error.code, BERTH_E_MEMORY);
            n_points++;
        }
    }
    printf("fault points tried: %llu\n", (unsigned long long)n_points);
    cr_assert_geq(n_points, 12);
}

/* W6: the list of names grows in front of another record with each archive's name. */
Test(plan, no_memory_for_a_value_or_a_byteorder_behind_it_is_a_clean_error)
{
    static const char name[] = "archive-of-a-long-name-for-a-file";
    const berth_new_record pickle = {.name = "data.pkl", .nbytes = 2, .data = "N."};
    const float number = 1;
    struct berth_config config = config_of("");
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *list = berth_make_list(tree);
    uint64_t n_points = 0;

    for (int i = 0; i < 40; i++)
        berth_list_append(list, test_vector(tree, BERTH_FLOAT32, &number, 1));
    const berth_content contents[] = {berth_of_value(list),
                                      berth_of_records(&pickle, 1, BERTH_RECORDS_BYTEORDER_LAST)};
    for (size_t i = 0; i < 2; i++)
        for (size_t from = 0; from < sizeof name - 1; from++) {
            berth_error error = {.code = BERTH_E_MEMORY};
            for (uint64_t nth = 1; error.code != BERTH_OK; nth++) {
                bth_error_clear(&error);
                test_memory_watch();
                test_memory_refuse(nth, false);
                berth_plan *plan = bth_plan_make(name + from, &contents[i], &config, &error);
                cr_assert_eq(plan == NULL, error.code == BERTH_E_MEMORY, "%s", error.message);
                berth_plan_free(plan);
                cr_assert_eq(test_memory_seen().live_nbytes, 0);
                cr_assert(!plan || test_memory_seen().n_allocations < nth, "%s", name + from);
                test_memory_unwatch();
                n_points += error.code < 0;
            }
        }
    berth_tree_free(tree);
    cr_assert_gt(n_points, 300);
}
