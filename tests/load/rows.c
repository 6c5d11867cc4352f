/* SPDX-License-Identifier: BSD-3-Clause */
/* Rows of tables through a bounded cache: what comes, what is read for it, who stays. */
#include "tests/support/load/rows_scene.h"

TestSuite(rows, .fini = end_rows);

/* ---- what comes ---- */

Test(rows, come_in_the_order_of_the_ids_repeated_or_not)
{
    static const int64_t ids[] = {999, 0, 7, 7, 0, 500, 999, 7};
    begin_rows(16, 16, "io.threads=1");

    use_rows(scene, ids, 8);
    use_rows(scene, ids + 2, 1);
    berth_rows_stats stats = rows_stats_of(scene);
    cr_expect_eq(stats.n_ids, 9);
    cr_expect_eq(stats.n_unique, 5);
    cr_expect_eq(stats.n_hits, 1);
    cr_expect_eq(stats.n_misses, 4);
    cr_expect_eq(stats.n_requests, 2);
    cr_expect_eq(stats.requested_nbytes, 4 * 64);
}

Test(rows, any_number_of_threads_and_sets_gives_the_same)
{
    static const char *const options[] = {"io.threads=1", "io.threads=2", "io.threads=7", ""};
    static const unsigned ways[] = {1, 5, 0, 64};
    int64_t ids[300];

    for (size_t k = 0; k < 4; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 70000, .ways = ways[k]};
        begin_rows_with(&limits, 3000, 16, "", options[k]);
        uint64_t state = k;
        for (int round = 0; round < 60; round++) {
            for (size_t i = 0; i < 300; i++) {
                state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
                ids[i] = (int64_t)((state >> 33) % 3000);
            }
            use_rows(scene, ids, 300);
        }
        cr_expect_gt(rows_stats_of(scene).n_evictions, 0);
        cr_expect_eq(rows_stats_of(scene).n_tickets, 0);
        end_rows();
    }
}

Test(rows, of_any_length_lie_at_multiples_of_it_or_of_64)
{
    static const int64_t columns[] = {1, 2, 3, 4, 15, 16, 17, 100, 5000};
    static const size_t alignments[] = {8, 8, 16, 16, 64, 64, 64, 64, 64};
    static const int64_t ids[] = {9, 3, 4, 0};
    const void *pointers[4];

    for (size_t k = 0; k < sizeof columns / sizeof *columns; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 400000, .scratch_nbytes = 100000};
        begin_rows_with(&limits, 10, columns[k], "", "io.threads=2");
        berth_ticket ticket = prefetch_rows(scene, ids, 4);
        expect_rows(scene, ticket, ids, 4);
        cr_assert_eq(berth_rows_wait(scene->rows, ticket, pointers, NULL), 0);
        for (size_t i = 0; i < 4; i++)
            cr_expect_eq((uintptr_t)pointers[i] % alignments[k], 0, "%d columns", (int)columns[k]);
        end_rows();
    }
}

/* T5 */
Test(rows, are_in_this_machines_order_and_aligned_whatever_the_file_is)
{
    static const char *const saved_with[] = {"save.byteorder=big", "save.storage_alignment=1",
                                             "save.byteorder=big save.storage_alignment=1"};
    static const int64_t ids[] = {9, 3, 4, 5, 0, 2999, 2998};

    for (size_t k = 0; k < 3; k++) {
        const berth_rows_limits limits = {.cache_nbytes = 100000};
        begin_rows_with(&limits, 3000, 9, saved_with[k], "io.threads=2");
        use_rows(scene, ids, 7);
        end_rows();
    }
}

Test(rows, an_empty_request_has_a_ticket_too)
{
    begin_rows(4, 1, "io.threads=1");
    berth_ticket ticket = prefetch_rows(scene, NULL, 0);

    cr_expect_eq(berth_rows_wait(scene->rows, ticket, NULL, NULL), 0);
    release_rows(scene, ticket);
}

Test(rows, several_tables_of_several_checkpoints_share_one_cache)
{
    static const int64_t ids[] = {1, 0, 9, 5};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    begin_rows_with(&limits, 10, 7, "", "io.threads=2");
    struct scene other = {.rows = scene->rows, .n_columns = 30};
    struct scene third = {.rows = scene->rows, .n_columns = 3};

    use_rows(scene, ids, 4);
    make_source(&other.source, 10, 30, "save.byteorder=big");
    other.checkpoint = open_source(&other.source);
    make_source(&third.source, 10, 3, "");
    third.checkpoint = open_source(&third.source);
    cr_assert_eq(berth_rows_add(scene->rows, other.checkpoint,
                                berth_find_tensor(other.checkpoint, "table", NULL), &other.table,
                                NULL),
                 0);
    cr_assert_eq(berth_rows_add(scene->rows, third.checkpoint,
                                berth_find_tensor(third.checkpoint, "table", NULL), &third.table,
                                NULL),
                 0);
    cr_expect_eq(scene->table, 0);
    cr_expect_eq(other.table, 1);
    cr_expect_eq(third.table, 2);
    cr_expect_eq(rows_stats_of(scene).line_nbytes, 128, "of the longest rows");
    berth_ticket tickets[] = {prefetch_rows(scene, ids, 4), prefetch_rows(&other, ids, 4),
                              prefetch_rows(&third, ids, 4)};
    expect_rows(scene, tickets[0], ids, 4);
    expect_rows(&other, tickets[1], ids, 4);
    expect_rows(&third, tickets[2], ids, 4);
    for (size_t i = 0; i < 3; i++)
        release_rows(scene, tickets[i]);
    use_rows(&other, ids, 4);
    use_rows(scene, ids, 4);
    end_rows();
    berth_close(other.checkpoint), berth_close(third.checkpoint);
    free(other.source.bytes), free(third.source.bytes);
}

/* What was asked for and written to is what the storage holds. */
Test(rows, of_a_storage_that_is_memory_come_from_there)
{
    static const int64_t id = 3;
    begin_rows(4, 1, "io.threads=1");
    const berth_tensor *tensor = berth_find_tensor(scene->checkpoint, "table", NULL);
    const void *pointer;

    float *data = (float *)(uintptr_t)berth_tensor_data(scene->checkpoint, tensor, NULL);
    data[3 * 16] = 77;
    scene->source.n_reads = 0;
    berth_ticket ticket = prefetch_rows(scene, &id, 1);
    cr_assert_eq(berth_rows_wait(scene->rows, ticket, &pointer, NULL), 0);
    cr_expect_eq(*(const float *)pointer, 77);
    cr_expect_eq(scene->source.n_reads, 0);
}

/* ---- what is read ---- */

Test(rows, neighbours_come_in_one_read_and_hits_in_none)
{
    static const int64_t ids[] = {5, 8, 6, 900, 7, 10};
    const berth_rows_limits limits = {.cache_nbytes = 20000, .scratch_nbytes = 4000};
    begin_rows_with(&limits, 1000, 16, "", "io.threads=1");

    use_rows(scene, ids, 6);
    cr_expect_eq(scene->source.n_reads, 2, "5 to 10, and 900");
    cr_expect_eq(scene->source.read_nbytes, 6 * 64 + 64);
    berth_rows_stats stats = rows_stats_of(scene);
    cr_expect_eq(stats.n_reads, 2);
    cr_expect_eq(stats.n_merged, 1);
    cr_expect_eq(stats.requested_nbytes, 6 * 64);
    cr_expect_eq(stats.read_nbytes, 7 * 64);
    use_rows(scene, ids, 6);
    cr_expect_eq(scene->source.n_reads, 2);
}

Test(rows, that_two_tickets_ask_for_are_read_once)
{
    static const int64_t first[] = {1, 500}, second[] = {500, 900};
    begin_rows(8, 4, "io.threads=3");

    set_shut(&scene->source, true);
    berth_ticket one = prefetch_rows(scene, first, 2), two = prefetch_rows(scene, second, 2);
    cr_expect_eq(rows_stats_of(scene).n_awaited, 1);
    set_shut(&scene->source, false);
    expect_rows(scene, two, second, 2);
    expect_rows(scene, one, first, 2);
    cr_expect_eq(scene->source.n_reads, 3);
    release_rows(scene, one);
    expect_rows(scene, two, second, 2);
    release_rows(scene, two);
}

/* Nobody waits for the first ticket: who waits for the second reads for both. */
Test(rows, without_threads_are_read_by_who_waits_whoever_asked)
{
    static const int64_t first[] = {1, 500}, second[] = {500};
    begin_rows(8, 4, "io.threads=1");
    berth_ticket one = prefetch_rows(scene, first, 2), two = prefetch_rows(scene, second, 1);

    cr_expect_eq(scene->source.n_reads, 0);
    expect_rows(scene, two, second, 1);
    cr_expect_eq(scene->source.n_reads, 2);
    release_rows(scene, two);
    expect_rows(scene, one, first, 2);
    release_rows(scene, one);
}

Test(rows, are_read_by_threads_while_nobody_waits)
{
    static const int64_t ids[] = {1, 500, 900};
    begin_rows(8, 4, "io.threads=2");
    berth_ticket ticket = prefetch_rows(scene, ids, 3);

    while (rows_stats_of(scene).n_reads < 3)
        usleep(1000);
    expect_rows(scene, ticket, ids, 3);
    release_rows(scene, ticket);
}

Test(rows, released_before_they_are_there_are_read_and_kept)
{
    static const int64_t ids[] = {1, 500, 900};
    begin_rows(8, 4, "io.threads=1");

    release_rows(scene, prefetch_rows(scene, ids, 3));
    cr_expect_eq(scene->source.n_reads, 3);
    use_rows(scene, ids, 3);
    cr_expect_eq(scene->source.n_reads, 3);
}

/* Threads that wait for a device do not wait for each other, however few processors there are. */
Test(rows, are_waited_for_many_at_a_time)
{
    const berth_rows_limits limits = {.cache_nbytes = 200000};
    begin_rows_with(&limits, 30000, 16, "", "io.threads=8");
    int64_t ids[300];

    for (int64_t i = 0; i < 300; i++)
        ids[i] = i * 100; /* none beside another */
    usleep(20000);        /* all threads sleep now */
    scene->source.is_slow = true;
    use_rows(scene, ids, 300);
    cr_expect_eq(scene->source.n_reads, 300);
    cr_expect_geq(scene->source.most_at_once, 6);
    cr_expect_leq(scene->source.most_at_once, 8, "io.threads");
}

/* ---- who stays, who goes ---- */

Test(rows, touched_longest_ago_make_room)
{
    begin_rows(4, 1, "io.threads=1");
    int64_t id;

    for (id = 0; id < 4; id++)
        use_rows(scene, &id, 1);
    id = 0, use_rows(scene, &id, 1);
    id = 100, use_rows(scene, &id, 1); /* in the place of 1 */
    cr_expect_eq(rows_stats_of(scene).n_evictions, 1);
    cr_expect_eq(scene->source.n_reads, 5);
    id = 0, use_rows(scene, &id, 1);
    cr_expect_eq(scene->source.n_reads, 5);
    id = 1, use_rows(scene, &id, 1);
    cr_expect_eq(scene->source.n_reads, 6);
}

Test(rows, that_live_tickets_hold_stay_and_others_go_to_the_scratch)
{
    static const int64_t held[] = {1, 2, 3, 4}, others[] = {10, 20};
    begin_rows(4, 2, "io.threads=2");
    berth_ticket holder = prefetch_rows(scene, held, 4);

    for (int round = 0; round < 3; round++)
        use_rows(scene, others, 2);
    berth_rows_stats stats = rows_stats_of(scene);
    cr_expect_eq(stats.n_conflicts, 6);
    cr_expect_eq(stats.n_evictions, 0);
    cr_expect_eq(stats.n_hits, 0, "rows of the scratch are their ticket's alone");
    expect_rows(scene, holder, held, 4);
    release_rows(scene, holder);
    use_rows(scene, others, 2);
    cr_expect_eq(rows_stats_of(scene).n_evictions, 2);
}

Test(rows, that_find_no_room_are_busy_and_nothing_changes)
{
    static const int64_t held[] = {1, 2, 3, 4}, others[] = {10, 20, 30, 2};
    begin_rows(5, 1, "io.threads=2");
    berth_ticket holder = prefetch_rows(scene, held, 4), ticket = 99;
    int64_t free_one = 50;

    use_rows(scene, &free_one, 1);
    FAILS(berth_rows_prefetch(scene->rows, scene->table, others, 4, &ticket, &error), BERTH_E_BUSY,
          "counted: 1 of 4 rows of table find no room, 64 bytes are "
          "missing: live tickets hold the others");
    cr_expect_eq(ticket, 0);
    berth_rows_stats stats = rows_stats_of(scene);
    cr_expect_eq(stats.n_tickets, 1);
    cr_expect_eq(stats.n_refused, 1);
    cr_expect_eq(stats.n_evictions, 0);
    unsigned n_reads = scene->source.n_reads;
    use_rows(scene, &free_one, 1);
    cr_expect_eq(scene->source.n_reads, n_reads, "what was there still is");
    use_rows(scene, others, 2);
    expect_rows(scene, holder, held, 4);
    release_rows(scene, holder);
    use_rows(scene, others, 4);
}

Test(rows, more_than_ever_find_room_are_told_from_busy)
{
    static const int64_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
    begin_rows(4, 2, "io.threads=1");
    berth_ticket ticket;

    FAILS(berth_rows_prefetch(scene->rows, scene->table, ids, 8, &ticket, &error), BERTH_E_MEMORY,
          "counted: 2 of 8 rows of table find no room, 128 bytes are missing: cache and "
          "scratch are too small for one request of so many");
    use_rows(scene, ids, 6);
}
