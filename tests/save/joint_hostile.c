/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * J4: tickets and receipts of an enemy: cut, changed by a byte, changed with the checksum put
 * right. Each is refused with a sentence, or does what it may: it never leaves its file, its file's
 * size or its memory.
 */
#include <berth/config.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/direct.h"
#include "save/joint/joint_ticket.h"
#include "save/temporary.h"
#include "tests/support/save/records.h"
#include "tests/support/scene.h"

enum { N = 5000, FEW = 6, N_WRITERS = 2 };

static berth_error error;
static float w[N], v[FEW];
static berth_tree *tree;
static berth_value *outline;
static berth_joint *joint;
static berth_joint_info info;
static void *receipts[N_WRITERS];
static size_t receipt_nbytes[N_WRITERS];

static void begin(void)
{
    void *receipt;

    assert_ok(berth_joint_begin(path, outline, N_WRITERS, NULL, &joint, &info, &error));
    for (size_t i = 0; i < N_WRITERS; i++) {
        const berth_slice slices[] = {
            berth_slice_bytes("w", i * N * 2, N * 2, (char *)w + i * N * 2),
            berth_slice_bytes("v", i * 12, 12, (char *)v + i * 12)};
        assert_ok(berth_joint_write(info.ticket, info.ticket_nbytes, i, slices, 2, NULL, &receipt,
                                    &receipt_nbytes[i], &error));
        free(receipts[i]);
        receipts[i] = malloc(receipt_nbytes[i]);
        memcpy(receipts[i], receipt, receipt_nbytes[i]);
        berth_free(receipt);
    }
}

static void set_up(void)
{
    const int64_t shape[] = {2, N / 2};

    begin_model_scene();
    patch("save.durability=none io.threads=1");
    test_write_file(path, "old", 3);
    for (size_t i = 0; i < N; i++)
        w[i] = (float)i;
    memset(v, 7, sizeof v);
    tree = berth_tree_new(NULL);
    outline = berth_make_dict(tree, BERTH_KIND_DICT);
    berth_dict_set(outline, "w", test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
    berth_dict_set(outline, "v", test_vector(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, FEW));
}

static void tear_down(void)
{
    for (size_t i = 0; i < N_WRITERS; i++)
        free(receipts[i]);
    berth_tree_free(tree);
    end_scene();
}

TestSuite(joint_hostile, .init = set_up, .fini = tear_down);

/* A copy that ends where its memory ends, so that the address sanitizer sees a read behind it. */
static uint8_t *copy_of(const void *bytes, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes ? nbytes : 1);

    memcpy(copy, bytes, nbytes);
    return copy;
}

static int write_with(const uint8_t *ticket, size_t nbytes)
{
    const berth_slice slices[] = {berth_slice_whole("w", w), berth_slice_whole("v", v)};
    void *receipt;
    size_t n;
    int status = berth_joint_write(ticket, nbytes, 0, slices, 2, NULL, &receipt, &n, &error);

    cr_assert_eq(status == 0, receipt != NULL);
    cr_assert(status == 0 || error.message[0]);
    berth_free(receipt);
    return status;
}

static int add_one(const uint8_t *receipt, size_t nbytes)
{
    int status = berth_joint_add_receipt(joint, receipt, nbytes, &error);

    cr_assert(status == 0 || error.message[0]);
    return status;
}

typedef int (*use_function)(const uint8_t *bytes, size_t nbytes);

static void check_every_prefix_is_refused(use_function use, const void *bytes, size_t nbytes)
{
    for (size_t n = 0; n < nbytes; n += n < 400 ? 1 : 97) {
        uint8_t *copy = copy_of(bytes, n);
        int status = use(copy, n);
        cr_assert(status == BERTH_E_TRUNCATED || status == BERTH_E_CHECKSUM, "%zu: %s", n,
                  error.message);
        free(copy);
    }
}

static void check_every_changed_byte_is_refused(use_function use, const void *bytes, size_t nbytes)
{
    uint8_t *copy = copy_of(bytes, nbytes);

    for (size_t i = 0; i < nbytes; i++) {
        copy[i] ^= (uint8_t)(1 + i % 255);
        int status = use(copy, nbytes);
        cr_assert(status == BERTH_E_CHECKSUM || (i < 8 && status == BERTH_E_ARGUMENT) ||
                      (i >= 8 && i < 12 && status == BERTH_E_UNSUPPORTED),
                  "byte %zu: %s", i, error.message);
        copy[i] ^= (uint8_t)(1 + i % 255);
    }
    free(copy);
}

Test(joint_hostile, cut_or_changed_on_the_way)
{
    begin();
    check_every_prefix_is_refused(write_with, info.ticket, info.ticket_nbytes);
    check_every_changed_byte_is_refused(write_with, info.ticket, info.ticket_nbytes);
    check_every_prefix_is_refused(add_one, receipts[0], receipt_nbytes[0]);
    check_every_changed_byte_is_refused(add_one, receipts[0], receipt_nbytes[0]);
    cr_assert_eq(add_one(info.ticket, info.ticket_nbytes), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "these bytes are no receipt"), "%s", error.message);
    cr_assert_eq(write_with(receipts[0], receipt_nbytes[0]), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "these bytes are no ticket"), "%s", error.message);
    berth_joint_abort(joint);
}

/* ---- with the checksum put right ---- */

static const uint8_t changes[] = {0x01, 0x80, 0xff};

static off_t temporary_nbytes(void)
{
    struct stat status;
    char *temporary = temporary_path(folder, "model.pt", 0);

    cr_assert_eq(stat(temporary, &status), 0);
    free(temporary);
    return status.st_size;
}

/* It can make a writer write elsewhere in the file of its own save, and no further. */
Test(joint_hostile, a_ticket_that_lies)
{
    size_t n_refused = 0, n_taken = 0;

    begin();
    off_t before = temporary_nbytes();
    uint8_t *copy = copy_of(info.ticket, info.ticket_nbytes);
    for (size_t i = 0; i + 4 < info.ticket_nbytes; i++)
        for (size_t j = 0; j < sizeof changes; j++) {
            copy[i] ^= changes[j];
            bth_blob_put_end(copy, info.ticket_nbytes);
            int status = write_with(copy, info.ticket_nbytes);
            *(status < 0 ? &n_refused : &n_taken) += 1;
            cr_assert_eq(temporary_nbytes(), before, "byte %zu", i);
            copy[i] ^= changes[j];
        }
    free(copy);
    cr_assert_eq(test_folder_count(folder), 2, "a ticket has made a file");
    cr_assert_gt(n_refused, info.ticket_nbytes);
    cr_assert_gt(n_taken, 10); /* paths in messages, numbers of writers, smaller shapes */
    berth_joint_abort(joint);
    cr_assert(test_file_holds(path, "old", 3));
}

/* J4: sizes whose product is none, or good, or that of 2^64 bytes. */
Test(joint_hostile, a_ticket_with_sizes_below_0)
{
    static const int64_t bad[][2] = {{0, -1},        {-1, 0},
                                     {-2, -2},       {INT64_MIN, 0},
                                     {0, INT64_MIN}, {INT64_C(1) << 31, INT64_C(1) << 31}};

    begin();
    uint8_t *copy = copy_of(info.ticket, info.ticket_nbytes);
    uint8_t sizes[16]; /* of "w" */
    (void)bth_put_u64(bth_put_u64(sizes, 2), N / 2);
    uint8_t *found = memmem(copy, info.ticket_nbytes, sizes, sizeof sizes);
    cr_assert_not_null(found);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        (void)bth_put_u64(bth_put_u64(found, (uint64_t)bad[i][0]), (uint64_t)bad[i][1]);
        bth_blob_put_end(copy, info.ticket_nbytes);
        cr_expect_eq(write_with(copy, info.ticket_nbytes), BERTH_E_ARGUMENT, "%zu", i);
        cr_expect(strstr(error.message, "the ticket is invalid: a tensor"), "%zu: %s", i,
                  error.message);
    }
    free(copy);
    berth_joint_abort(joint);
}

/* J4: cut, and given the checksum that what is left of it has. */
Test(joint_hostile, cut_with_a_good_checksum)
{
    begin();
    for (size_t n = BTH_BLOB_HEAD_NBYTES + BTH_BLOB_END_NBYTES; n < info.ticket_nbytes; n++) {
        uint8_t *copy = copy_of(info.ticket, n);
        bth_blob_put_end(copy, n);
        cr_assert_lt(write_with(copy, n), 0, "a ticket of %zu bytes", n);
        free(copy);
    }
    for (size_t n = BTH_BLOB_HEAD_NBYTES + BTH_BLOB_END_NBYTES; n < receipt_nbytes[0];
         n += n < 400 ? 1 : 97) {
        uint8_t *copy = copy_of(receipts[0], n);
        bth_blob_put_end(copy, n);
        cr_assert_lt(add_one(copy, n), 0, "a receipt of %zu bytes", n);
        free(copy);
    }
    berth_joint_abort(joint);
}

/* J4: a text has its length, no NUL in it, and one behind it. */
Test(joint_hostile, a_ticket_with_texts_that_do_not_end)
{
    static const uint8_t name[] = {1, 0, 0, 0, 'w', 0};
    static const struct {
        size_t at;
        uint8_t byte;
    } changes_of_name[] = {{4, 0}, {5, 'x'}, {5, 1}, {0, 2}};

    begin();
    for (size_t i = 0; i < sizeof changes_of_name / sizeof *changes_of_name; i++) {
        uint8_t *copy = copy_of(info.ticket, info.ticket_nbytes);
        uint8_t *found = memmem(copy, info.ticket_nbytes, name, sizeof name);
        cr_assert_not_null(found);
        found[changes_of_name[i].at] = changes_of_name[i].byte;
        bth_blob_put_end(copy, info.ticket_nbytes);
        cr_expect_eq(write_with(copy, info.ticket_nbytes), BERTH_E_ARGUMENT, "%zu", i);
        cr_expect(strstr(error.message, "the ticket is invalid"), "%zu: %s", i, error.message);
        free(copy);
    }
    berth_joint_abort(joint);
}

/* Whether the lie is found: at the receipt, or at the end. Never a file of another size. */
static bool is_found(const uint8_t *lie, bool *in_debug)
{
    size_t nbytes;

    if (add_one(lie, receipt_nbytes[0]) < 0) {
        berth_joint_abort(joint);
        return true;
    }
    (void)add_one(receipts[1], receipt_nbytes[1]);
    uint64_t whole = info.nbytes;
    int status = berth_joint_finish(joint, &error);
    *in_debug = status == BERTH_E_CHECKSUM;
    uint8_t *file = test_read_file(path, &nbytes);
    cr_assert(status < 0 ? nbytes == 3 && memcmp(file, "old", 3) == 0 : nbytes == whole);
    free(file);
    test_write_file(path, "old", 3);
    return status < 0;
}

/* J7: in debug mode the only lies that are believed are the fragments: nobody else has these bytes.
 */
Test(joint_hostile, a_receipt_that_lies)
{
    size_t n_debug = 0, n_found = 0, n_parts = 2, head = BTH_BLOB_HEAD_NBYTES + 12;

    patch("debug=on");
    for (size_t i = 0; i < head + n_parts * 32; i++)
        for (size_t j = 0; j < sizeof changes; j++) {
            bool in_debug = false;
            begin();
            uint8_t *copy = copy_of(receipts[0], receipt_nbytes[0]);
            copy[i] ^= changes[j];
            bth_blob_put_end(copy, receipt_nbytes[0]);
            bool found = is_found(copy, &in_debug);
            cr_assert(found, "byte %zu", i);
            n_found += found;
            n_debug += in_debug;
            free(copy);
        }
    cr_assert_geq(n_debug, 12, "the CRC of the part that is in the file");
    cr_assert_gt(n_found, 200);
    assert_ok(berth_config_unpatch(&error));
}

/* ---- numbers that agree with each other ---- */

static void check_ticket_is_refused(uint8_t *lie, size_t nbytes, const char *sentence)
{
    bth_blob_put_end(lie, nbytes);
    cr_assert_eq(write_with(lie, nbytes), BERTH_E_ARGUMENT, "%s", error.message);
    cr_assert(strstr(error.message, sentence), "%s", error.message);
}

/* J5: a file of the same seal, whose name is not that of a temporary. */
Test(joint_hostile, a_ticket_that_names_another_file)
{
    size_t nbytes;
    bth_ticket ticket;

    begin();
    cr_assert_eq(bth_ticket_read(info.ticket, info.ticket_nbytes, &ticket, &error), 0);
    size_t at = (size_t)(ticket.temporary - (const char *)info.ticket);
    char *temporary = test_path(folder, ticket.temporary);
    uint8_t *sealed = test_read_file(temporary, &nbytes);
    uint8_t *lie = copy_of(info.ticket, info.ticket_nbytes);
    lie[at + 1] = 'x';
    char *other = test_path(folder, (char *)lie + at);
    test_write_file(other, sealed, nbytes);
    check_ticket_is_refused(lie, info.ticket_nbytes,
                            "the ticket is invalid: the place of the file");
    cr_assert(test_file_holds(other, sealed, nbytes));
    cr_assert_eq(truncate(temporary, (off_t)nbytes - 1), 0); /* sealed, but not as long */
    memcpy(lie, info.ticket, info.ticket_nbytes);
    check_ticket_is_refused(lie, info.ticket_nbytes,
                            "the ticket is of another save than the one that writes");
    bth_ticket_free_all(&ticket);
    free(temporary);
    free(sealed);
    free(other);
    free(lie);
    berth_joint_abort(joint);
}

/* J5: a link in the place of its temporary is not followed. */
Test(joint_hostile, a_link_in_the_place_of_the_temporary)
{
    begin();
    char *temporary = temporary_path(folder, "model.pt", 0);
    cr_assert(unlink(temporary) == 0 && symlink("model.pt", temporary) == 0);
    cr_assert_eq(write_with(info.ticket, info.ticket_nbytes), BERTH_E_SYSTEM, "%s", error.message);
    cr_assert(strstr(error.message, "its temporary .berth-"), "%s", error.message);
    cr_assert(strstr(error.message, "cannot be opened"), "%s", error.message);
    cr_assert(test_file_holds(path, "old", 3));
    free(temporary);
    berth_joint_abort(joint);
}

/* A block that no direct write has: a power of two all the same. */
Test(joint_hostile, a_ticket_with_a_block_too_small_or_too_large)
{
    const size_t block_at = BTH_BLOB_HEAD_NBYTES + 4;

    begin();
    uint8_t *lie = copy_of(info.ticket, info.ticket_nbytes);
    (void)bth_put_u32(lie + block_at, BTH_DIRECT_BLOCK_NBYTES / 2);
    check_ticket_is_refused(lie, info.ticket_nbytes, "the ticket is invalid: an option");
    (void)bth_put_u32(lie + block_at, 2 * BTH_MAX_DIRECT_BLOCK_NBYTES);
    check_ticket_is_refused(lie, info.ticket_nbytes, "the ticket is invalid: an option");
    (void)bth_put_u32(lie + block_at, BTH_MAX_DIRECT_BLOCK_NBYTES);
    bth_blob_put_end(lie, info.ticket_nbytes);
    assert_ok(write_with(lie, info.ticket_nbytes));
    free(lie);
    berth_joint_abort(joint);
}

/* One number of the ticket is another one. The first tensor is "w", the last storage that of "v".
 */
Test(joint_hostile, a_ticket_with_one_number_that_lies)
{
    enum { HEAD, PLACES, STORAGE, TENSOR, N_BEGINS };
    static const struct {
        int begin;
        uint32_t at, value;
        const char *sentence; /* NULL: it is taken */
    } cases[] = {
        {HEAD, 0, 0, "invalid: an option"}, /* writers */
        {HEAD, 0, BERTH_MAX_WRITERS + 1, "invalid: an option"},
        {HEAD, 0, BERTH_MAX_WRITERS, NULL},
        {HEAD, 4, 3 * BTH_DIRECT_BLOCK_NBYTES, "invalid: an option"},
        {HEAD, 8, 2, "invalid: an option"},                        /* whether there are CRCs */
        {HEAD, 12, BTH_DURABILITY_FULL + 1, "invalid: an option"}, /* durability */
        {HEAD, 16, 2, "invalid: an option"},                       /* byte order */
        {HEAD, 16, !BTH_MACHINE_IS_BIG_ENDIAN, "the coordinator's machine has another byte order"},
        {HEAD, 28, UINT32_C(1) << 31, "invalid: an option"},       /* the file: 2^63 bytes */
        {PLACES, 0, 0x2f2f2f78, "invalid: the place of the file"}, /* its folder: "x///" */
        {STORAGE, 4, 3, "invalid: a storage"},                     /* the swap unit */
        {STORAGE, 4, 16, "invalid: a storage"},
        {STORAGE, 16, sizeof v - 1, "invalid: a tensor"},
        {TENSOR, 0, 2, "invalid: a tensor"}, /* the storage */
        {TENSOR, 4, BERTH_DTYPE_COUNT, "invalid: a tensor"},
        {TENSOR, 4, BERTH_DTYPE_NONE, "invalid: a tensor"},
        {TENSOR, 8, BERTH_MAX_RANK + 1, "invalid: a tensor"},
        {TENSOR, 12, 2, "invalid: a tensor"}, /* whether it is contiguous */
        {TENSOR, 16, 4, "invalid: a tensor"}, /* its offset */
    };
    bth_ticket ticket;

    begin();
    cr_assert_eq(bth_ticket_read(info.ticket, info.ticket_nbytes, &ticket, &error), 0);
    const size_t begins[N_BEGINS] = {
        [HEAD] = BTH_BLOB_HEAD_NBYTES,
        [PLACES] = (size_t)(ticket.folder - (const char *)info.ticket),
        [STORAGE] = ticket.tensors_at - 24,
        [TENSOR] = ticket.tensors_at,
    };
    const size_t archive_at = (size_t)(ticket.archive - (const char *)info.ticket),
                 archive_nbytes = strlen(ticket.archive);
    bth_ticket_free_all(&ticket);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *sentence = cases[i].sentence;
        uint8_t *lie = copy_of(info.ticket, info.ticket_nbytes);
        (void)bth_put_u32(lie + begins[cases[i].begin] + cases[i].at, cases[i].value);
        bth_blob_put_end(lie, info.ticket_nbytes);
        bth_error_clear(&error);
        int code = bth_ticket_read(lie, info.ticket_nbytes, &ticket, &error);
        cr_expect_eq(code < 0, sentence != NULL, "%zu", i);
        cr_expect(!sentence || strstr(error.message, sentence), "%zu: %s", i, error.message);
        bth_ticket_free_all(&ticket);
        free(lie);
    }
    /* Bytes that are no whole swap units. */
    uint8_t *lie = copy_of(info.ticket, info.ticket_nbytes);
    (void)bth_put_u32(lie + begins[STORAGE] + 4, 2);
    (void)bth_put_u64(lie + begins[STORAGE] + 16, sizeof v + 1);
    check_ticket_is_refused(lie, info.ticket_nbytes, "invalid: a storage");
    free(lie);
    /* What is empty, and of what no slice can be taken, may lie outside. */
    lie = copy_of(info.ticket, info.ticket_nbytes);
    (void)bth_put_u64(lie + begins[TENSOR] + 16, UINT64_MAX);
    (void)bth_put_u64(lie + begins[TENSOR] + 24, 0);
    bth_blob_put_end(lie, info.ticket_nbytes);
    assert_ok(bth_ticket_read(lie, info.ticket_nbytes, &ticket, &error));
    bth_ticket_free_all(&ticket);
    (void)bth_put_u64(lie + begins[TENSOR] + 24, 2);
    (void)bth_put_u32(lie + begins[TENSOR] + 12, 0);
    bth_blob_put_end(lie, info.ticket_nbytes);
    assert_ok(bth_ticket_read(lie, info.ticket_nbytes, &ticket, &error));
    bth_ticket_free_all(&ticket);
    free(lie);
    /* The archive name: with a slash in it, and without its end. */
    for (size_t i = 0; i < 2; i++) {
        lie = copy_of(info.ticket, info.ticket_nbytes);
        lie[archive_at + i * archive_nbytes] = '/';
        check_ticket_is_refused(lie, info.ticket_nbytes, "invalid: the archive name");
        free(lie);
    }
    static const char *const counts[] = {"invalid: the number of storages",
                                         "invalid: the number of tensors"};
    for (size_t i = 0; i < 2; i++) {
        lie = copy_of(info.ticket, info.ticket_nbytes);
        (void)bth_put_u32(lie + begins[TENSOR] - 2 * 24 - 8 + 4 * i, 1000);
        check_ticket_is_refused(lie, info.ticket_nbytes, counts[i]);
        free(lie);
    }
    berth_joint_abort(joint);
}

/* A tensor and its storage that go beyond the end of the file together. */
Test(joint_hostile, a_ticket_with_a_storage_beyond_the_file)
{
    bth_ticket ticket;

    begin();
    uint8_t *lie = copy_of(info.ticket, info.ticket_nbytes);
    cr_assert_eq(bth_ticket_read(lie, info.ticket_nbytes, &ticket, &error), 0);
    cr_assert_eq(ticket.n_storages, 2);
    /* "v" is the last storage and the last tensor: the name "v", no path, the end. */
    size_t nbytes_at = ticket.tensors_at - 8,
           shape_at = info.ticket_nbytes - (4 + 2 + 4 + 1 + 4) - 8;
    (void)bth_put_u64(lie + nbytes_at, 1 << 30);
    (void)bth_put_u64(lie + shape_at, (1 << 30) / sizeof *v);
    check_ticket_is_refused(lie, info.ticket_nbytes, "the ticket is invalid: a storage");
    (void)bth_put_u64(lie + nbytes_at, sizeof v);
    check_ticket_is_refused(lie, info.ticket_nbytes, "the ticket is invalid: a tensor");
    bth_ticket_free_all(&ticket);
    free(lie);
    berth_joint_abort(joint);
}

/* A part behind the end of its storage, with fragments for all of it. */
Test(joint_hostile, a_receipt_with_a_part_beyond_its_storage)
{
    size_t head = BTH_BLOB_HEAD_NBYTES + 12, more = 16;

    begin();
    size_t nbytes = receipt_nbytes[0] + more;
    uint8_t *lie = calloc(1, nbytes);
    memcpy(lie, receipts[0], receipt_nbytes[0]);
    (void)bth_put_u64(lie + head + 32 + 16, 12 + more);
    bth_blob_put_end(lie, nbytes);
    cr_assert_eq(add_one(lie, nbytes), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "the receipt of writer 0 is invalid: a part"), "%s",
              error.message);
    free(lie);
    lie = copy_of(receipts[0], receipt_nbytes[0] - 1);
    bth_blob_put_end(lie, receipt_nbytes[0] - 1);
    cr_assert_eq(add_one(lie, receipt_nbytes[0] - 1), BERTH_E_ARGUMENT);
    cr_assert(strstr(error.message, "the receipt of writer 0 is invalid: fragments are missing"),
              "%s", error.message);
    free(lie);
    berth_joint_abort(joint);
}

/* ---- chains ---- */

enum { N_LINKED = 4, LINKED_NBYTES = 5000, MAX_LIE = 3 };

/* Of tensors of 5000 bytes, one behind the other, but for the last one, which has 100. */
static const struct {
    const char *what, *sentence;
    size_t n;
    struct {
        uint32_t storage, at, nbytes;
        bool behind, before;
    } parts[MAX_LIE];
} chain_lies[] = {
    {"true", NULL, 2, {{0, 0, LINKED_NBYTES, true, false}, {1, 0, LINKED_NBYTES, false, true}}},
    {"true, three",
     NULL,
     3,
     {{0, 0, LINKED_NBYTES, true, false},
      {1, 0, LINKED_NBYTES, true, true},
      {2, 0, LINKED_NBYTES, false, true}}},
    {"only one says so",
     "a part",
     2,
     {{0, 0, LINKED_NBYTES, true, false}, {1, 0, LINKED_NBYTES, false, false}}},
    {"only the other says so",
     "a part",
     2,
     {{0, 0, LINKED_NBYTES, false, false}, {1, 0, LINKED_NBYTES, false, true}}},
    {"of nothing", "a part", 1, {{0, 0, 0, false, false}}},
    {"to nothing", "its last part is chained to nothing", 1, {{0, 0, LINKED_NBYTES, true, false}}},
    {"from nothing", "a part", 1, {{0, 0, LINKED_NBYTES, false, true}}},
    {"over one",
     "a part",
     2,
     {{0, 0, LINKED_NBYTES, true, false}, {2, 0, LINKED_NBYTES, false, true}}},
    {"to itself",
     "a part",
     2,
     {{0, 0, LINKED_NBYTES, true, false}, {0, 0, LINKED_NBYTES, false, true}}},
    {"not the begin",
     "a part",
     2,
     {{0, 8, LINKED_NBYTES - 8, true, false}, {1, 0, LINKED_NBYTES, false, true}}},
    {"not the end",
     "a part",
     2,
     {{0, 0, LINKED_NBYTES, true, false}, {1, 0, LINKED_NBYTES - 8, false, true}}},
    {"backwards",
     "a part",
     2,
     {{1, 0, LINKED_NBYTES, false, false}, {0, 0, LINKED_NBYTES, false, false}}},
    {"overlapping", "a part", 2, {{0, 0, 100, false, false}, {0, 50, 100, false, false}}},
    {"side by side", NULL, 2, {{0, 0, 100, false, false}, {0, 100, 100, false, false}}},
    {"no block begins in it",
     "a part",
     2,
     {{2, 0, LINKED_NBYTES, true, false}, {3, 0, 100, false, true}}},
};

static berth_value *linked_outline(berth_tree *of)
{
    static const char *const names[N_LINKED] = {"a", "b", "c", "d"};
    berth_value *value = berth_make_dict(of, BERTH_KIND_DICT);

    for (size_t i = 0; i < N_LINKED; i++)
        berth_dict_set(
            value, names[i],
            test_vector(of, BERTH_UINT8, BERTH_ELSEWHERE, i == N_LINKED - 1 ? 100 : LINKED_NBYTES));
    return value;
}

/* A receipt of these parts, with zeros for their fragments and CRCs. */
static int add_receipt_of(const bth_ticket *ticket, const bth_joint_part *parts, size_t n)
{
    bth_slice_part own[N_LINKED + MAX_LIE] = {{.bytes = NULL}};
    uint64_t fragments_nbytes = 1;
    uint8_t *bytes;
    size_t nbytes;

    for (size_t i = 0; i < n; i++) {
        bth_joint_split split = bth_joint_part_split(ticket, &parts[i]);
        fragments_nbytes += split.head_nbytes + split.tail_nbytes;
        own[i].part = parts[i];
    }
    uint8_t *zeros = calloc((size_t)fragments_nbytes, 1);
    assert_ok(bth_receipt_write(ticket, 0, own, n, zeros, &bytes, &nbytes, &error));
    int status = add_one(bytes, nbytes);
    bth_release(bytes);
    free(zeros);
    return status;
}

static int add_chain_lie(const bth_ticket *ticket, size_t number)
{
    bth_joint_part parts[MAX_LIE] = {{0}};

    for (size_t i = 0; i < chain_lies[number].n; i++) {
        parts[i].storage = chain_lies[number].parts[i].storage & BTH_MAX_JOINT_STORAGES;
        parts[i].at = chain_lies[number].parts[i].at;
        parts[i].nbytes = chain_lies[number].parts[i].nbytes;
        parts[i].is_chained_behind = chain_lies[number].parts[i].behind;
        parts[i].is_chained_before = chain_lies[number].parts[i].before;
    }
    return add_receipt_of(ticket, parts, chain_lies[number].n);
}

static void begin_linked(size_t n_writers, bth_ticket *ticket)
{
    outline = linked_outline(tree);
    assert_ok(berth_joint_begin(path, outline, n_writers, NULL, &joint, &info, &error));
    assert_ok(bth_ticket_read(info.ticket, info.ticket_nbytes, ticket, &error));
}

Test(joint_hostile, a_receipt_whose_chain_lies)
{
    bth_ticket ticket;

    for (size_t i = 0; i < sizeof chain_lies / sizeof *chain_lies; i++) {
        const char *sentence = chain_lies[i].sentence;
        begin_linked(N_WRITERS, &ticket);
        int status = add_chain_lie(&ticket, i);
        cr_assert_eq(status, sentence ? BERTH_E_ARGUMENT : 0, "%s: %s", chain_lies[i].what,
                     error.message);
        cr_assert(!sentence || strstr(error.message, sentence), "%s: %s", chain_lies[i].what,
                  error.message);
        bth_ticket_free_all(&ticket);
        berth_joint_abort(joint);
    }
}

/* J7: debug mode also reads what lies between the parts. */
Test(joint_hostile, a_chain_that_was_not_written)
{
    static const bth_joint_part parts[N_LINKED] = {
        {.storage = 0, .nbytes = LINKED_NBYTES, .is_chained_behind = 1},
        {.storage = 1, .nbytes = LINKED_NBYTES, .is_chained_before = 1},
        {.storage = 2, .nbytes = LINKED_NBYTES},
        {.storage = 3, .nbytes = 100}};
    bth_ticket ticket;

    patch("debug=on");
    begin_linked(1, &ticket);
    assert_ok(add_receipt_of(&ticket, parts, N_LINKED));
    cr_assert_lt(berth_joint_finish(joint, &error), 0);
    cr_assert(strstr(error.message, "data/0") || strstr(error.message, "data/1"), "%s",
              error.message);
    cr_assert(test_file_holds(path, "old", 3));
    assert_ok(berth_config_unpatch(&error));
    bth_ticket_free_all(&ticket);
}

/* What reading it takes is less than it has bytes, also if its counts lie. */
Test(joint_hostile, a_ticket_takes_less_memory_than_it_has_bytes)
{
    size_t nbytes;
    bth_ticket ticket;

    begin();
    nbytes = info.ticket_nbytes;
    uint8_t *lie = copy_of(info.ticket, nbytes);
    cr_assert_eq(bth_ticket_read(lie, nbytes, &ticket, &error), 0);
    size_t counts_at = ticket.tensors_at - ticket.n_storages * 24 - 8;
    bth_ticket_free_all(&ticket);
    berth_joint_abort(joint);
    berth_tree_free(tree);
    assert_ok(berth_config_unpatch(&error));
    test_memory_watch();
    for (unsigned i = 0; i < 4; i++) {
        if (i % 2)
            (void)bth_put_u32(lie + counts_at, UINT32_MAX);
        if (i / 2)
            (void)bth_put_u32(lie + counts_at + 4, UINT32_MAX);
        bth_blob_put_end(lie, nbytes);
        int status = bth_ticket_read(lie, nbytes, &ticket, &error);
        cr_assert_eq(status, i == 0 ? 0 : BERTH_E_ARGUMENT, "%u: %s", i, error.message);
        bth_ticket_free_all(&ticket);
        bth_error_clear(&error);
        cr_assert_lt(test_memory_seen().peak_nbytes, nbytes);
        cr_assert_eq(test_memory_seen().live_nbytes, 0);
    }
    test_memory_unwatch();
    free(lie);
    tree = NULL;
}
