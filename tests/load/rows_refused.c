/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows that do not come: ids, tickets, reads and limits that are wrong, each with its sentence. */
#include <berth/config.h>

#include "tests/support/load/rows_scene.h"

TestSuite(rows_refused, .fini = end_rows);

/* ---- errors ---- */

Test(rows_refused, an_id_that_is_no_row_is_named_and_nothing_is_held)
{
    static const struct {
        int64_t ids[3];
        const char *message;
    } cases[] = {
        {{1, 2, 1000},
         "counted: id 1000, number 2 of the request, is no row of table, which has 1000"},
        {{1, -1, 1000},
         "counted: id -1, number 1 of the request, is no row of table, which has 1000"},
        {{INT64_MIN, 0, 0},
         "counted: id -9223372036854775808, number 0 of the request, is no row of table, which has "
         "1000"},
        {{INT64_MAX, 0, 0},
         "counted: id 9223372036854775807, number 0 of the request, is no row of table, which has "
         "1000"},
    };
    begin_rows(4, 2, "io.threads=1");

    for (size_t k = 0; k < 4; k++) {
        berth_ticket ticket = 99;
        FAILS(berth_rows_prefetch(scene->rows, scene->table, cases[k].ids, 3, &ticket, &error),
              BERTH_E_ARGUMENT, cases[k].message);
        cr_expect_eq(ticket, 0);
    }
    cr_expect_eq(rows_stats_of(scene).n_tickets, 0);
    cr_expect_eq(rows_stats_of(scene).n_misses, 0);
}

Test(rows_refused, a_ticket_ends_once)
{
    static const int64_t ids[] = {1, 2};
    begin_rows(4, 2, "io.threads=1");
    berth_ticket old = prefetch_rows(scene, ids, 2);
    const void *pointers[2];
    char expected[100];

    release_rows(scene, old);
    (void)snprintf(expected, sizeof expected, "ticket %llu is not live: unknown, or released",
                   (unsigned long long)old);
    FAILS(berth_rows_release(scene->rows, old, &error), BERTH_E_ARGUMENT, expected);
    berth_ticket new = prefetch_rows(scene, ids, 2); /* in the place of the old one */
    cr_expect_neq(new, old);
    cr_expect_eq(berth_rows_release(scene->rows, old, &error), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_wait(scene->rows, old, NULL, &error), BERTH_E_ARGUMENT);
    FAILS(berth_rows_wait(scene->rows, old, pointers, &error), BERTH_E_ARGUMENT, expected);
    cr_expect_eq(berth_rows_release(scene->rows, 0, NULL), BERTH_E_ARGUMENT);
    cr_expect_eq(berth_rows_release(scene->rows, UINT64_MAX, NULL), BERTH_E_ARGUMENT);
    expect_rows(scene, new, ids, 2);
    release_rows(scene, new);
}

Test(rows_refused, tickets_that_are_never_released_end_with_the_cache)
{
    static const char *const options[] = {"io.threads=1", "io.threads=4"};
    static const int64_t ids[] = {1, 100, 200, 300, 400, 500};

    for (size_t k = 0; k < 2; k++) {
        test_memory_watch();
        begin_rows(16, 2, options[k]);
        prefetch_rows(scene, ids, 6);
        prefetch_rows(scene, ids, 3);
        for (int64_t id = 600; id < 620; id++) /* more than one lot of places */
            prefetch_rows(scene, &id, 0);
        end_rows();
        cr_expect_eq(test_memory_seen().live_nbytes, 0);
        test_memory_unwatch();
    }
}

Test(rows_refused, that_cannot_be_read_are_an_error_and_not_kept)
{
    static const int64_t ids[] = {1, 500};
    begin_rows(8, 4, "io.threads=1");
    const void *pointers[2];

    scene->source.is_broken = true;
    berth_ticket ticket = prefetch_rows(scene, ids, 2);
    cr_expect_eq(berth_rows_wait(scene->rows, ticket, NULL, &error), BERTH_E_CALLBACK);
    char expected[200];
    uint64_t offset = berth_find_tensor(scene->checkpoint, "table", NULL)->storage->offset + 64;
    (void)snprintf(expected, sizeof expected,
                   "counted: \"table\": data/0 at byte %llu: the source did not read 64 bytes: "
                   "Input/output error",
                   (unsigned long long)offset);
    cr_expect_str_eq(error.message, expected);
    cr_expect_eq(error.offset, offset);
    cr_expect_str_eq(error.record, "data/0");
    cr_expect_eq(berth_rows_wait(scene->rows, ticket, pointers, &error), BERTH_E_CALLBACK);
    cr_expect_str_eq(error.message, expected, "as often as it is asked");
    release_rows(scene, ticket);
    scene->source.is_broken = false;
    use_rows(scene, ids, 2);
}

/* W8: the others have their rows all the same. */
Test(rows_refused, that_another_ticket_could_not_read_fail_for_both)
{
    static const int64_t good[] = {7}, first[] = {1, 500}, second[] = {500, 900}, third[] = {7, 8};
    begin_rows(8, 4, "io.threads=1");

    use_rows(scene, good, 1);
    scene->source.is_broken = true;
    berth_ticket one = prefetch_rows(scene, first, 2), two = prefetch_rows(scene, second, 2);
    berth_ticket three = prefetch_rows(scene, good, 1);
    cr_expect_eq(berth_rows_wait(scene->rows, one, NULL, &error), BERTH_E_CALLBACK);
    scene->source.is_broken = false;
    cr_expect_eq(berth_rows_wait(scene->rows, two, NULL, &error), BERTH_E_CALLBACK);
    expect_rows(scene, three, good, 1);
    use_rows(scene, third, 2);
    /* While the lost rows are still held. */
    use_rows(scene, first, 2);
    release_rows(scene, one), release_rows(scene, two), release_rows(scene, three);
    use_rows(scene, second, 2);
}

/* W9: rows that the cache has stay, of the others none is made up. */
Test(rows_refused, of_a_file_that_was_truncated_are_an_error)
{
    static const int64_t kept[] = {1}, lost[] = {1, 999};
    const berth_rows_limits limits = {.cache_nbytes = 20000};
    struct scene cut = {.n_columns = 16};
    char expected[300];

    begin_scene("rows.pt");
    make_source(&cut.source, 1000, 16, "");
    test_write_file(path, cut.source.bytes, cut.source.nbytes);
    cr_assert_eq(berth_open(path, NULL, &cut.checkpoint, NULL), 0);
    const berth_tensor *tensor = berth_find_tensor(cut.checkpoint, "table", NULL);
    uint64_t last_at = tensor->storage->offset + 999 * 64;
    cr_assert_eq(berth_rows_new(&limits, NULL, &cut.rows, NULL), 0);
    cr_assert_eq(berth_rows_add(cut.rows, cut.checkpoint, tensor, &cut.table, NULL), 0);
    use_rows(&cut, kept, 1);
    cr_assert_eq(truncate(path, (off_t)last_at + 63), 0);
    berth_ticket ticket = prefetch_rows(&cut, lost, 2);
    cr_expect_eq(berth_rows_wait(cut.rows, ticket, NULL, &error), BERTH_E_TRUNCATED);
    (void)snprintf(expected, sizeof expected,
                   "%s: \"table\": data/0 at byte %llu: the file ends here, 1 bytes too early",
                   path, (unsigned long long)last_at + 63);
    cr_expect_str_eq(error.message, expected);
    release_rows(&cut, ticket);
    use_rows(&cut, kept, 1);
    berth_rows_free(cut.rows);
    berth_close(cut.checkpoint);
    free(cut.source.bytes);
    end_scene();
}

/* ---- limits ---- */

static int new_rows(uint64_t cache_nbytes, uint64_t scratch_nbytes, unsigned ways,
                    const char *options)
{
    const berth_rows_limits limits = {
        .cache_nbytes = cache_nbytes, .scratch_nbytes = scratch_nbytes, .ways = ways};
    berth_rows *rows;

    patch(options);
    int status = berth_rows_new(&limits, NULL, &rows, &error);
    cr_assert_eq(berth_config_unpatch(NULL), 0);
    cr_expect_eq(!rows, status < 0);
    berth_rows_free(rows);
    return status;
}

Test(rows_refused, limits_that_cannot_be_are_refused_at_once)
{
    berth_rows *rows;

    cr_expect_eq(new_rows(4000, 96, 0, "io.memory_nbytes=4096"), 0);
    FAILS(new_rows(4000, 97, 0, "io.memory_nbytes=4096"), BERTH_E_MEMORY,
          "a cache of 4000 bytes and a scratch of 97, but io.memory_nbytes=4096: 1 bytes are "
          "missing");
    cr_expect_eq(new_rows(4096, 0, 0, "io.memory_nbytes=4096"), BERTH_E_MEMORY,
                 "scratch is not for nothing");
    FAILS(new_rows(0, 1000, 0, ""), BERTH_E_ARGUMENT, "the limits are NULL, or cache_nbytes is 0");
    FAILS(new_rows(1000, 1000, 65, ""), BERTH_E_ARGUMENT,
          "a row can be in at most 64 lines, not 65");
    cr_expect_eq(new_rows(UINT64_MAX, 5, 0, ""), BERTH_E_MEMORY);
    cr_expect_eq(new_rows(UINT64_MAX / 2, 5, 0, ""), BERTH_E_MEMORY);
    cr_expect_eq(berth_rows_new(NULL, NULL, &rows, &error), BERTH_E_ARGUMENT);
    cr_expect_null(rows);
    berth_rows_limits later = {.cache_nbytes = 4096, .reserved[4] = 1};
    FAILS_SAYING(berth_rows_new(&later, NULL, &rows, &error), BERTH_E_ARGUMENT,
                 "berth_rows_limits: reserved[4] is not 0");
    berth_rows_free(NULL);
}

/* Where the root is the tensor, it has no name. */
Test(rows_refused, a_table_without_a_name_has_that_of_its_storage)
{
    static const float elements[160];
    static const int64_t shape[] = {10, 16};
    const berth_rows_limits limits = {.cache_nbytes = 10000, .scratch_nbytes = 1000};
    const int64_t id = 10;
    berth_ticket ticket;
    berth_tree *tree = berth_tree_new(NULL);
    const berth_tensor table = {
        .dtype = BERTH_FLOAT32, .rank = 2, .shape = shape, .data = elements};
    berth_rows *rows;
    size_t number, nbytes;
    void *bytes;

    assert_ok(berth_save_to(TO_MEMORY(&bytes, &nbytes), OF_VALUE(berth_make_tensor(tree, &table)),
                            NULL, &error));
    assert_ok(berth_open_source(FROM_MEMORY(bytes, nbytes), NULL, &checkpoint, &error));
    assert_ok(berth_rows_new(&limits, NULL, &rows, &error));
    assert_ok(
        berth_rows_add(rows, checkpoint, berth_as_tensor(berth_root(checkpoint)), &number, &error));
    FAILS_SAYING(berth_rows_prefetch(rows, number, &id, 1, &ticket, &error), BERTH_E_ARGUMENT,
                 "is no row of the tensor of storage 0, which has 10");
    berth_rows_free(rows);
    close_opened();
    berth_free(bytes);
    berth_tree_free(tree);
}

Test(rows_refused, limits_too_small_for_a_table_name_it_and_the_bytes_missing)
{
    static const struct {
        berth_rows_limits limits;
        const char *message;
    } cases[] = {
        {{.cache_nbytes = 83, .scratch_nbytes = 1000},
         "counted: \"table\": data/0: it has rows of 64 bytes: cache_nbytes=83 is too small, 1 "
         "bytes are missing"},
        {{.cache_nbytes = 335, .scratch_nbytes = 1000, .ways = 4},
         "counted: \"table\": data/0: it has rows of 64 bytes: cache_nbytes=335 is too small, 1 "
         "bytes are missing"},
        {{.cache_nbytes = 336, .scratch_nbytes = 67, .ways = 4},
         "counted: \"table\": data/0: it has rows of 64 bytes: scratch_nbytes=67 is too small, 1 "
         "bytes are missing"},
        {{.cache_nbytes = 336, .scratch_nbytes = 68, .ways = 4}, NULL},
    };
    begin_rows(4, 2, "io.threads=1");
    const berth_tensor *tensor = berth_find_tensor(scene->checkpoint, "table", NULL);

    for (size_t k = 0; k < 4; k++) {
        berth_rows *rows;
        size_t table;
        cr_assert_eq(berth_rows_new(&cases[k].limits, NULL, &rows, NULL), 0);
        int status = berth_rows_add(rows, scene->checkpoint, tensor, &table, &error);
        cr_expect_eq(status, cases[k].message ? BERTH_E_MEMORY : 0);
        cr_expect_str_eq(error.message, cases[k].message ? cases[k].message : "");
        berth_rows_free(rows);
    }
}

Test(rows_refused, a_table_with_longer_rows_waits_until_no_ticket_is_live)
{
    static const int64_t ids[] = {1, 2};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    begin_rows_with(&limits, 10, 16, "", "io.threads=1");
    struct scene other = {.rows = scene->rows, .n_columns = 17};

    make_source(&other.source, 10, 17, "");
    other.checkpoint = open_source(&other.source);
    const berth_tensor *tensor = berth_find_tensor(other.checkpoint, "table", NULL);
    berth_ticket ticket = prefetch_rows(scene, ids, 2);
    FAILS(berth_rows_add(scene->rows, other.checkpoint, tensor, &other.table, &error), BERTH_E_BUSY,
          "counted: \"table\": data/0: the table's rows are longer than the cache's lines, and 1 "
          "live tickets hold rows");
    expect_rows(scene, ticket, ids, 2);
    release_rows(scene, ticket);
    cr_expect_eq(berth_rows_add(scene->rows, other.checkpoint, tensor, &other.table, &error), 0);
    use_rows(&other, ids, 2);
    use_rows(scene, ids, 2);
    end_rows();
    berth_close(other.checkpoint);
    free(other.source.bytes);
}

Test(rows_refused, of_what_has_none_are_refused)
{
    static const float six[6];
    static const int64_t flat[] = {160}, two[] = {10, 16}, transposed[] = {1, 10}, none[] = {10, 0};
    begin_rows(4, 2, "io.threads=1");
    const berth_tensor *table = berth_find_tensor(scene->checkpoint, "table", NULL);
    berth_tree *tree = berth_tree_new(NULL);
    size_t number;
    berth_tensor tensors[] = {*table, *table, *table, *table, *table, *table};
    static const struct {
        int code;
        const char *message;
    } expected[] = {
        {BERTH_E_ARGUMENT,
         "counted: \"table\": data/0: a table of rows has 2 dimensions, this tensor has 1"},
        {BERTH_E_UNSUPPORTED,
         "counted: \"table\": data/0: it is not contiguous: its rows do not follow each other"},
        {BERTH_E_ARGUMENT, "counted: \"table\": data/0: the rows have no elements"},
        {BERTH_E_UNSUPPORTED,
         "counted: \"table\": data/0: rows of quint4x2 elements are not supported"},
        {BERTH_E_ARGUMENT, "counted: a meta tensor has no data"},
        {BERTH_E_ARGUMENT, "counted: the storage is of another checkpoint or tree"},
    };

    tensors[0].rank = 1, tensors[0].shape = flat;
    tensors[1].shape = two, tensors[1].stride = transposed;
    tensors[2].shape = none;
    tensors[3].dtype = BERTH_QUINT4X2;
    tensors[4].flags = BERTH_META;
    tensors[5].storage = berth_storage_new(tree, BERTH_FLOAT32, six, sizeof six, NULL);
    for (size_t k = 0; k < 6; k++) {
        cr_expect_eq(berth_rows_add(scene->rows, scene->checkpoint, &tensors[k], &number, &error),
                     expected[k].code, "%s", error.message);
        cr_expect_str_eq(error.message, expected[k].message);
    }
    berth_tree_free(tree);
}

Test(rows_refused, a_part_of_a_tensor_is_a_table_too)
{
    static const int64_t shape[] = {10, 32}, ids[] = {0, 9};
    begin_rows_with(&(berth_rows_limits){.cache_nbytes = 10000, .scratch_nbytes = 1000}, 100, 16,
                    "", "io.threads=1");
    berth_tensor part = *berth_find_tensor(scene->checkpoint, "table", NULL);
    static const int64_t stride[] = {32, 1};
    const void *pointers[2];
    berth_ticket ticket;

    part.shape = shape, part.stride = stride;
    part.storage_offset += 50 * 16; /* ten rows of 32 from row 50 of 16 on */
    cr_assert_eq(berth_rows_add(scene->rows, scene->checkpoint, &part, &scene->table, NULL), 0);
    cr_assert_eq(berth_rows_prefetch(scene->rows, scene->table, ids, 2, &ticket, NULL), 0);
    cr_assert_eq(berth_rows_wait(scene->rows, ticket, pointers, NULL), 0);
    cr_expect_eq(((const float *)pointers[0])[0], table_element(50, 0));
    cr_expect_eq(((const float *)pointers[1])[31], table_element(69, 15));
    part.storage_offset += 50 * 16; /* T2: past the end */
    cr_expect_eq(berth_rows_add(scene->rows, scene->checkpoint, &part, &scene->table, &error),
                 BERTH_E_TENSOR);
}

Test(rows_refused, of_an_empty_table_there_are_none)
{
    static const int64_t id = 0;
    begin_rows_with(&(berth_rows_limits){.cache_nbytes = 10000}, 0, 16, "", "");
    berth_ticket ticket;

    cr_expect_eq(berth_rows_prefetch(scene->rows, scene->table, &id, 1, &ticket, &error),
                 BERTH_E_ARGUMENT);
    release_rows(scene, prefetch_rows(scene, NULL, 0));
    FAILS(berth_rows_prefetch(scene->rows, 1, &id, 1, &ticket, &error), BERTH_E_ARGUMENT,
          "there is no table 1, the cache has 1");
}
