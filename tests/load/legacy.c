/* SPDX-License-Identifier: BSD-3-Clause */
/* Streams from before PyTorch 1.6, as PyTorch 1.13 wrote them (tests/data/make_old.py). */
#include <berth/config.h>

#include "format/values/value.h"
#include "load/checkpoint.h"
#include "tests/support/load/archive.h"

#define VIEWS "tests/data/old/views-1.13-stream.pth"

static void read_views(void)
{
    read_file("old/views-1.13-stream.pth");
}

TestSuite(legacy, .init = read_views, .fini = end_sample);

static void expect_views(void)
{
    float base[24];

    for (int i = 0; i < 24; i++)
        base[i] = (float)i;
    expect_floats("base", base, 24);
    expect_floats("tied", base, 24);
    expect_floats("row", base + 6, 6);
    expect_floats("column", (const float[]){2, 8, 14, 20}, 4);
    expect_floats("scalar", (const float[]){3.5F}, 1);
    expect_floats("parameter", base, 4);
}

Test(legacy, values_are_read_by_every_method)
{
    static const char *const options[] = {"",
                                          "load.check=none",
                                          "load.check=data",
                                          "debug=on",
                                          "load.head_nbytes=1",
                                          "load.mmap=off",
                                          "load.endianness=big"};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        open_file(options[i]);
        expect_views();
    }
}

Test(legacy, storages_and_their_views_come_together)
{
    static const char *const options[] = {"load.method=read", "load.method=direct io.threads=3",
                                          "load.method=map load.check=data", "load.mmap=off"};

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        berth_stats stats;
        cr_assert_eq(berth_config_patch(options[i], NULL), 0);
        cr_assert_eq(berth_open(VIEWS, NULL, &checkpoint, NULL), 0);
        assert_ok(berth_load(checkpoint, NULL, &(berth_params){.stats = &stats}, &error));
        uint64_t before = atomic_load(&checkpoint->source.reader.n_requests);
        expect_views();
        cr_expect_eq(atomic_load(&checkpoint->source.reader.n_requests), before, "all is there");
        for (size_t k = 0; k < checkpoint->storages.n; k++) {
            berth_storage_stats told;
            const berth_storage *storage = bth_tree_storage(checkpoint->contents.tree, k);
            cr_assert_eq(berth_storage_get_stats(checkpoint, storage, &told, NULL), 0);
            cr_expect_str_neq(told.method, "none");
        }
        close_opened();
        berth_config_unpatch(NULL);
    }
}

Test(legacy, payloads_are_not_aligned_but_memory_is)
{
    bool any_odd = false;

    cr_assert_eq(berth_open(VIEWS, NULL, &checkpoint, NULL), 0);
    for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
        berth_named_tensor named;
        cr_assert_eq(berth_tensor_at(checkpoint, i, &named, NULL), 0);
        size_t item_nbytes = berth_dtype_nbytes(named.tensor->dtype);
        const void *data = berth_tensor_data(checkpoint, named.tensor, NULL);
        cr_expect_not_null(data);
        if (item_nbytes == 4 || item_nbytes == 8) {
            cr_expect_eq((uintptr_t)data % 4, 0, "%s", named.name); /* T5 */
            any_odd = any_odd || named.offset % item_nbytes != 0;
        }
    }
    cr_expect(any_odd);
}

Test(legacy, views_lie_in_the_memory_of_their_root)
{
    cr_assert_eq(berth_open(VIEWS, NULL, &checkpoint, NULL), 0);
    const float *base = data_of("base");
    const float *row = data_of("row");
    cr_expect_eq(row, base + 6);
}

Test(legacy, tells_what_it_is)
{
    berth_info info;
    berth_verdict verdict;

    cr_assert_eq(berth_open("tests/data/old/many-1.13-stream.pth", NULL, &checkpoint, NULL), 0);
    assert_ok(berth_get_info(checkpoint, &info, &error));
    cr_expect_str_eq(info.archive, "");
    cr_expect_str_eq(info.container, "legacy");
    cr_expect_eq(info.format_version, 0);
    cr_expect_str_eq(info.byteorder, "little");
    cr_expect_eq(info.n_storages, 13);
    cr_expect_eq(info.n_tensors, 13);
    cr_expect_eq(info.storages_nbytes, 4 * 3 * 91);
    cr_expect_not(info.calculated_offsets);
    close_opened();
    cr_assert_eq(berth_verify(FROM_PATH("tests/data/old/many-1.13-stream.pth"), NULL, NULL, NULL,
                              &verdict, &error),
                 0);
    cr_expect_eq(verdict.n_storages, 13);
    cr_expect_eq(verdict.n_verified, 0);
    cr_expect_eq(verdict.n_unverified, 13);
    cr_expect_eq(verdict.nbytes, 4 * 3 * 91);
}

#define OLD_TEXT "\x80\2U\4caf\xe9."
#define NOT_UTF8                                                                                   \
    "SHORT_BINSTRING: text that is not UTF-8 at its byte 3 (load.old_text=latin1 reads it, in "    \
    "Python encoding=\"latin1\")"
#define LEGACY_HEAD                                                                                \
    "\x80\2\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\2M\xe9\3."                        \
    "\x80\2}U\x0dlittle_endian\x88s."

Test(legacy, text_of_python_2_may_be_latin1_as_in_an_archive)
{
    static const char stream[] = LEGACY_HEAD OLD_TEXT "\x80\2].";
    static const char *const messages[] = {
        "memory: data.pkl at byte 66: " NOT_UTF8,
        "memory: object at byte 44: " NOT_UTF8,
    };

    berth_tree *tree = berth_tree_new(&error);
    begin_records(tree, berth_make_none(tree), "little");
    set_record("data.pkl", OLD_TEXT, sizeof OLD_TEXT - 1);
    add_text("version", "3\n");
    build(NULL);
    for (size_t i = 0; i < 2; i++) {
        size_t nbytes;
        const void *bytes = i ? (const void *)stream : file;
        size_t n = i ? sizeof stream - 1 : file_nbytes;
        expect_failure_of(bytes, n, "", BERTH_E_PICKLE, messages[i]);
        assert_ok(open_bytes(bytes, n, "load.old_text=latin1"));
        cr_expect_str_eq(berth_as_text(berth_root(checkpoint), &nbytes), "caf\xc3\xa9");
    }
}

Test(legacy, a_pickled_module_is_refused)
{
    read_file("old/module-1.13-stream.pth");
    expect_failure(
        "", BERTH_E_FORBIDDEN,
        "memory: object at byte 153: global __main__ Scale is not allowed in a checkpoint "
        "(load.unknown_globals=inert lists such files without running anything)");
}

Test(legacy, cut_at_any_byte_is_refused)
{
    for (size_t cut = 0; cut < file_nbytes; cut++) {
        uint8_t *copy = malloc(cut + 1);
        memcpy(copy, file, cut);
        cr_expect_lt(open_bytes(copy, cut, "load.check=none"), 0, "cut at %zu", cut);
        cr_expect_eq(strncmp(error.message, "memory: ", 8), 0, "%s", error.message);
        free(copy);
    }
}

Test(legacy, with_bytes_behind_it_is_refused)
{
    file = realloc(file, file_nbytes + 16);
    memset(file + file_nbytes, 0, 16);
    file_nbytes += 16;
    expect_failure(
        "", BERTH_E_ARCHIVE,
        "memory: at byte 1705: 16 bytes follow the last storage: `head -c 1705` leaves them out");
}

/* ---- several objects in one file ---- */

/* Bytes of another file, or text, behind what there is. */
static void add_bytes(const void *bytes, size_t nbytes)
{
    file = realloc(file, file_nbytes + nbytes);
    memcpy(file + file_nbytes, bytes, nbytes);
    file_nbytes += nbytes;
}

static void add_file(const char *name)
{
    uint8_t *first = file;
    size_t first_nbytes = file_nbytes;

    file = NULL;
    read_file(name);
    uint8_t *second = file;
    size_t second_nbytes = file_nbytes;
    file = first;
    file_nbytes = first_nbytes;
    add_bytes(second, second_nbytes);
    free(second);
}

static void count_reports(void *context, const berth_record_verdict *record)
{
    uint64_t *last = context;

    cr_expect_geq(record->offset, *last, "offsets are those of the file");
    *last = record->offset;
}

static int verify_file(berth_verdict *verdict)
{
    uint64_t last = 0;

    return berth_verify(FROM_MEMORY(file, file_nbytes), NULL, count_reports, &last, verdict,
                        &error);
}

Test(legacy, of_several_objects_the_first_is_read_and_all_are_verified)
{
    static const char *const options[] = {"", "load.head_nbytes=1", "load.check=data"};
    size_t first = file_nbytes;
    berth_verdict verdict;
    berth_stats stats;
    berth_info info;

    add_file("old/many-1.13-stream.pth");
    add_file("old/views-1.13-stream.pth");
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        assert_ok(open_bytes(file, file_nbytes, options[i]));
        expect_views();
        assert_ok(berth_get_info(checkpoint, &info, &error));
        cr_expect_eq(info.behind_nbytes, file_nbytes - first);
        cr_expect_eq(info.nbytes, file_nbytes);
        assert_ok(berth_load(checkpoint, NULL, &(berth_params){.stats = &stats}, &error));
        cr_expect_eq(stats.behind_nbytes, file_nbytes - first);
        close_opened();
    }
    assert_ok(verify_file(&verdict));
    cr_expect(verdict.is_intact);
    cr_expect_eq(verdict.behind_nbytes, file_nbytes - first);
    cr_expect_gt(verdict.n_storages, 13, "of all three");
    cr_expect_gt(verdict.nbytes, 4 * 3 * 91);
}

/* What is wrong with a further object is told with its place, and what keeps the good ones. */
Test(legacy, a_further_object_that_is_not_whole_is_bad)
{
    berth_verdict verdict;
    size_t first = file_nbytes;

    add_file("old/many-1.13-stream.pth");
    size_t whole = file_nbytes;
    file_nbytes -= 3;
    cr_expect_eq(verify_file(&verdict), BERTH_E_TRUNCATED);
    cr_expect_not(verdict.is_intact);
    cr_expect_eq(strncmp(error.message, "memory from byte 1705 on: storage ", 34), 0, "%s",
                 error.message);
    cr_expect(
        strstr(error.message,
               ": the file ends within this storage's 84 bytes: a download or a save in place that "
               "did not end?: `head -c 1705` keeps what is in front of it, which is whole"),
        "%s", error.message);
    cr_expect_gt(error.offset, first);
    assert_ok(open_bytes(file, file_nbytes, ""));
    expect_views();
    close_opened();

    file_nbytes = whole;
    add_bytes("rubbish", 7);
    char text[256];
    snprintf(text, sizeof text,
             "memory: at byte %zu: 7 bytes follow the last storage of the last object: `head -c "
             "%zu` leaves them out",
             whole, whole);
    cr_expect_eq(verify_file(&verdict), BERTH_E_ARCHIVE);
    cr_expect_not(verdict.is_intact);
    cr_expect_str_eq(error.message, text);
    cr_expect_eq(error.offset, whole);
}

Test(legacy, a_further_object_that_is_refused_leaves_the_file_intact)
{
    static const char odd[] = LEGACY_HEAD "\x80\2}]K\1s.\x80\2]."; /* a list as a key */
    berth_verdict verdict;

    add_file("old/module-1.13-stream.pth");
    cr_expect_eq(verify_file(&verdict), BERTH_E_FORBIDDEN);
    cr_expect(verdict.is_intact);
    cr_expect_str_eq(error.message,
                     "memory from byte 1705 on: object at byte 153: global __main__ Scale is not "
                     "allowed in a checkpoint (load.unknown_globals=inert lists such files without "
                     "running anything): `tail -c +1706` makes a file of it");

    /* So does one that is of another kind: "unsupported". */
    free(file);
    file = NULL;
    read_views();
    add_bytes(odd, sizeof odd - 1);
    cr_expect_eq(verify_file(&verdict), BERTH_E_UNSUPPORTED, "%s", error.message);
    cr_expect(strstr(error.message, "makes a file of it"), "%s", error.message);

    /* A refusal of the first stays, and what is behind it is looked at all the same. */
    free(file);
    file = NULL;
    read_file("old/module-1.13-stream.pth");
    size_t first = file_nbytes;
    add_file("old/views-1.13-stream.pth");
    cr_expect_eq(verify_file(&verdict), BERTH_E_FORBIDDEN);
    cr_expect(verdict.is_intact);
    cr_expect_eq(strncmp(error.message, "memory: object at byte 153: ", 28), 0, "%s",
                 error.message);
    file_nbytes -= 1;
    cr_expect_eq(verify_file(&verdict), BERTH_E_TRUNCATED);
    cr_expect_not(verdict.is_intact);
    cr_expect_gt(error.offset, first);
}

Test(legacy, further_objects_are_counted)
{
    static const char small[] = LEGACY_HEAD "\x80\2K\1.\x80\2].";
    berth_verdict verdict;

    file_nbytes = 0;
    for (int i = 0; i <= 1000; i++)
        add_bytes(small, sizeof small - 1);
    assert_ok(verify_file(&verdict));
    cr_expect(verdict.is_intact);
    add_bytes(small, sizeof small - 1);
    char text[128];
    snprintf(text, sizeof text,
             "memory: at byte %zu: more than 1000 objects behind the first: those from here on "
             "were not looked at",
             file_nbytes - (sizeof small - 1));
    cr_expect_eq(verify_file(&verdict), BERTH_E_UNSUPPORTED);
    cr_expect_not(verdict.is_intact);
    cr_expect_str_eq(error.message, text);
}

/* A stream has no CRCs: a flipped bit may be another value, but nothing worse (P3, F5). */
Test(legacy, a_flipped_bit_does_no_harm)
{
    for (size_t at = 0; at < file_nbytes; at++)
        for (int bit = 0; bit < 8; bit++) {
            file[at] ^= (uint8_t)(1 << bit);
            test_memory_watch();
            if (berth_open_source(FROM_MEMORY(file, file_nbytes), NULL, &checkpoint, &error) == 0) {
                for (size_t i = 0; i < berth_tensor_count(checkpoint); i++) {
                    berth_named_tensor named;
                    if (berth_tensor_at(checkpoint, i, &named, &error) == 0)
                        (void)berth_tensor_data(checkpoint, named.tensor, &error);
                }
                close_opened();
            }
            struct test_memory seen = test_memory_seen();
            test_memory_unwatch();
            cr_expect_eq(seen.live_nbytes, 0);
            cr_expect_leq(seen.peak_nbytes, 64 * file_nbytes + 65536, "byte %zu", at);
            file[at] ^= (uint8_t)(1 << bit);
        }
}

Test(legacy, its_storages_can_be_read_for_saving_again)
{
    void *saved;
    size_t nbytes;

    cr_assert_eq(berth_open(VIEWS, NULL, &checkpoint, NULL), 0);
    assert_ok(
        berth_save_to(TO_MEMORY(&saved, &nbytes), OF_VALUE(berth_root(checkpoint)), NULL, &error));
    assert_ok(open_bytes(saved, nbytes, ""));
    expect_views();
    close_opened();
    berth_free(saved);
}
