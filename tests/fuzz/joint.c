/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Tickets and receipts of joint saves (J4): any bytes as both, with their checksums put right. What
 * is accepted of a ticket lies in its file; parts of a receipt lie in their storages; receipts that
 * are complete leave just the rest of the file to be written. The receipt is also read as a message
 * of an exchange: its pieces lie in their storages and in the window (J8).
 */
#include "tests/support/fuzz/target.h"
#include "tests/support/support.h"

#include <errno.h>

#include "base/error.h"
#include "base/memory.h"
#include "io/syscalls.h"
#include "save/joint/joint_writer.h"

#define MAX_RECEIPT_NBYTES 16384
#define MAX_TENSORS 64 /* of which slices are tried */
#define IDENTITY_AT 12

/* An input: u16 nbytes of the ticket, the ticket, the receipt. Copies, that end where they end. */
typedef struct blobs {
    uint8_t *ticket, *receipt;
    size_t ticket_nbytes, receipt_nbytes;
} blobs;

static uint8_t *copy_and_put_end(const uint8_t *bytes, size_t nbytes)
{
    uint8_t *copy = malloc(nbytes + (nbytes == 0));

    memcpy(copy, bytes, nbytes);
    if (nbytes >= BTH_BLOB_HEAD_NBYTES + BTH_BLOB_END_NBYTES)
        bth_blob_put_end(copy, nbytes);
    return copy;
}

static blobs blobs_of(const uint8_t *bytes, size_t nbytes)
{
    blobs made = {.ticket_nbytes = (size_t)bytes[0] | (size_t)bytes[1] << 8};

    if (made.ticket_nbytes > nbytes - 2)
        made.ticket_nbytes = nbytes - 2;
    made.receipt_nbytes = nbytes - 2 - made.ticket_nbytes;
    made.ticket = copy_and_put_end(bytes + 2, made.ticket_nbytes);
    made.receipt = copy_and_put_end(bytes + 2 + made.ticket_nbytes, made.receipt_nbytes);
    return made;
}

static bool check_status(int status, const berth_error *error)
{
    MUST(status == (int)error->code && (status < 0) == (error->message[0] != 0), "%d: %s", status,
         error->message);
    MUST(is_clean_text(error->message), "not one line of UTF-8: %s", error->message);
    return status == 0;
}

/* ---- tickets ---- */

static void check_part(const bth_ticket *ticket, const bth_joint_part *part)
{
    MUST(part->storage < ticket->n_storages, "no such storage");
    const bth_ticket_storage *storage = &ticket->storages[part->storage];
    bth_joint_split split = bth_joint_part_split(ticket, part);
    uint64_t begin = storage->data_offset + part->at, middle = split.middle.nbytes;

    MUST(part->nbytes > 0 && part->at <= storage->nbytes &&
             part->nbytes <= storage->nbytes - part->at &&
             begin + part->nbytes <= ticket->file_nbytes,
         "a part is not in its storage");
    MUST(split.head_nbytes + middle + split.tail_nbytes == part->nbytes, "a split is not its part");
    MUST(middle == 0 || split.middle.offset == begin + split.head_nbytes, "a middle is elsewhere");
    MUST(middle == 0 || part->is_chained_before || split.middle.offset % ticket->block_nbytes == 0,
         "a middle does not begin with a block");
    MUST(middle == 0 || part->is_chained_behind ||
             (split.middle.offset + middle) % ticket->block_nbytes == 0,
         "a middle does not end with a block");
    MUST(split.head_nbytes + split.tail_nbytes < 2 * (uint64_t)ticket->block_nbytes,
         "more fragments than two blocks");
}

/* J1: what is exchanged is of blocks that lie in their storage as a whole, and nothing is lost. */
static void check_fragments(const bth_ticket *ticket, bth_slice_parts *parts)
{
    uint64_t nbytes = 0, taken = bth_fragments_count_nbytes(ticket, parts), behind = 0;
    berth_error error = {0};

    for (size_t i = 0; i < parts->n; i++)
        nbytes += parts->parts[i].part.nbytes;
    MUST(bth_fragments_take(ticket, parts, &error) == 0, "%s", error.message);
    for (size_t i = 0; i < parts->n; i++) {
        check_part(ticket, &parts->parts[i].part);
        nbytes -= parts->parts[i].part.nbytes;
    }
    MUST(nbytes == taken, "a part and its fragments are not what it was");
    for (size_t i = 0; i < parts->n_fragments; i++) {
        const bth_joint_part *part = &parts->fragments[i].part;
        const bth_ticket_storage *storage = &ticket->storages[part->storage];
        uint64_t begin = storage->data_offset + part->at, mask = ticket->block_nbytes - 1;
        check_part(ticket, part);
        MUST(begin >= behind, "fragments are not in the file's order");
        behind = begin + part->nbytes;
        MUST((begin & ~mask) == ((behind - 1) & ~mask), "a fragment is of two blocks");
        MUST((begin & ~mask) >= storage->data_offset &&
                 ((behind + mask) & ~mask) <= storage->data_offset + storage->nbytes,
             "a fragment is of a block that its storage shares");
        taken -= part->nbytes;
    }
    MUST(taken == 0, "fragments are lost");
}

/* All memory can be read. */
static ssize_t read_nothing(pid_t process, const struct iovec *to, unsigned long n_to,
                            const struct iovec *from, unsigned long n_from, unsigned long flags)
{
    (void)process, (void)to, (void)n_to, (void)from, (void)n_from, (void)flags;
    return 1;
}

/* Slices of every tensor. No byte of them is read. */
static void check_slices(const bth_ticket *ticket, const bth_ticket_tensor *tensor, unsigned kind)
{
    static const char nothing;
    int64_t starts[BERTH_MAX_RANK], lengths[BERTH_MAX_RANK];
    berth_slice slices[] = {berth_slice_whole(tensor->name, &nothing),
                            berth_slice_of(tensor->name, starts, lengths, &nothing),
                            berth_slice_bytes(tensor->name, kind, kind * 7777, &nothing)};
    bth_slice_parts parts;
    berth_error error = {0};

    for (int32_t i = 0; i < tensor->rank; i++) {
        starts[i] = kind % 4 == 1 ? 0 : (int64_t)(kind % 3);
        lengths[i] = i == 0 || kind % 2 ? tensor->shape[i] / 2 : tensor->shape[i];
    }
    bth_system.process_vm_readv = read_nothing;
    if (check_status(bth_slice_parts_make(ticket, &slices[kind % 3], 1, kind % 2, &parts, &error),
                     &error)) {
        for (size_t i = 0; i < parts.n; i++)
            check_part(ticket, &parts.parts[i].part);
        check_fragments(ticket, &parts);
    }
    bth_slice_parts_free_all(&parts);
}

/* A writer that has all: where it writes between two parts, whole blocks begin and end. */
static void check_chains(const bth_ticket *ticket)
{
    static const char nothing;
    berth_slice slices[MAX_TENSORS];
    bth_slice_parts parts;
    berth_error error = {0};
    bth_ticket_tensor tensor;
    size_t n = 0, at = ticket->tensors_at;

    for (; n < MAX_TENSORS && bth_ticket_next_tensor(ticket, &at, &tensor); n++)
        slices[n] = berth_slice_whole(tensor.name, &nothing);
    bth_system.process_vm_readv = read_nothing;
    if (check_status(bth_slice_parts_make(ticket, slices, n, true, &parts, &error), &error)) {
        bth_chains_make(ticket, &parts);
        for (size_t i = 0; i < parts.n; i++) {
            const bth_joint_part *part = &parts.parts[i].part;
            check_part(ticket, part);
            MUST(part->is_chained_before == (i > 0 && parts.parts[i - 1].part.is_chained_behind),
                 "half a link");
            MUST(!part->is_chained_before ||
                     bth_joint_parts_can_chain(ticket, &parts.parts[i - 1].part, part),
                 "a chain of others");
        }
    }
    bth_slice_parts_free_all(&parts);
}

/* Both its name and its path lead to it, or to an earlier one that has them, too. */
static void check_is_found(const bth_ticket *ticket, const bth_ticket_tensor *tensor, size_t begin)
{
    const berth_slice slices[] = {
        berth_slice_whole(tensor->name, NULL),
        berth_slice_whole(tensor->path[0] ? tensor->path : tensor->name, NULL)};
    berth_error error = {0};
    size_t *at;

    MUST(bth_ticket_find_tensors_of_slices(ticket, slices, 2, &at, &error) == 0, "%s",
         error.message);
    for (size_t i = 0; i < 2; i++)
        MUST(at[i] >= ticket->tensors_at && at[i] <= begin, "%s is not found", slices[i].name);
    bth_release(at);
}

static void check_ticket(const bth_ticket *ticket)
{
    size_t at = ticket->tensors_at, begin = at;
    bth_ticket_tensor tensor;
    uint64_t behind = 0;

    for (size_t i = 0; i < ticket->n_storages; i++) {
        const bth_ticket_storage *storage = &ticket->storages[i];
        MUST(storage->data_offset >= behind, "storages overlap");
        behind = storage->data_offset + storage->nbytes;
        MUST(behind >= storage->data_offset && behind <= ticket->file_nbytes, "beyond the file");
    }
    check_chains(ticket);
    for (size_t i = 0; i < MAX_TENSORS && bth_ticket_next_tensor(ticket, &at, &tensor); i++) {
        check_is_found(ticket, &tensor, begin);
        for (unsigned kind = 0; kind < 12; kind++)
            check_slices(ticket, &tensor, kind);
        begin = at;
    }
}

/* ---- receipts ---- */

static berth_storage *elsewhere(berth_tree *tree, uint64_t nbytes)
{
    return berth_storage_new(tree, BERTH_UINT8, BERTH_ELSEWHERE, nbytes, NULL);
}

/* The plan of a file that has the ticket's storages and nothing else. NULL: it has none. */
static berth_plan *plan_of(const bth_ticket *ticket, berth_tree *tree)
{
    struct berth_config config = {.save_storage_alignment = 1};
    berth_error error = {0};
    berth_plan *plan = bth_plan_new("joint", &config, ticket->n_storages, &error);

    plan->is_parts = true;
    for (size_t i = 0; i < ticket->n_storages; i++) {
        const bth_ticket_storage *storage = &ticket->storages[i];
        const bth_plan_record content = {.storage = elsewhere(tree, storage->nbytes),
                                         .is_part = true};
        MUST(bth_plan_add_at(plan, "data/0", storage->data_offset, storage->nbytes, &content,
                             &error) == 0,
             "%s", error.message);
    }
    plan->tail_offset = ticket->file_nbytes;
    return plan;
}

/* What is present and what is left are the file, in order. Fragments are read where they lie. */
static void check_rest(const bth_ticket *ticket, const berth_plan *plan,
                       const bth_joint_parts *parts)
{
    const bth_run_parts *run = &parts->run;
    uint64_t at = 0;
    uint8_t byte;

    for (size_t i = 0, j = 0; i < run->n_ranges || j < run->n_present;) {
        bool is_range = i < run->n_ranges && run->ranges[i].offset == at;
        MUST(is_range || (j < run->n_present && run->present[j].range.offset == at),
             "byte %llu is nobody's", (unsigned long long)at);
        at += is_range ? run->ranges[i++].nbytes : run->present[j++].range.nbytes;
        uint64_t before = j < run->n_present ? run->present[j].before_nbytes : 0;
        MUST(before == 0 || !is_range, "what a chain has written is in a range, too");
        at += before;
    }
    MUST(at == ticket->file_nbytes, "the rest ends at %llu", (unsigned long long)at);
    for (size_t i = 0; i < plan->n_records; i++) {
        const bth_plan_record *record = &plan->records[i];
        bool is_head =
            bth_joint_part_split(ticket, &parts->sources[i].parts[0].part).head_nbytes > 0;
        MUST(record->read(record->context, &byte, 1, 0) == (is_head ? 0 : EIO), "a fragment");
    }
}

static void check_receipt(const bth_ticket *ticket, const bth_receipt *receipt)
{
    berth_tree *tree = berth_tree_new(NULL);
    bth_joint_parts parts;
    berth_error error = {0};
    bool has_empty = false;

    for (size_t i = 0; i < receipt->n_parts; i++) {
        bth_joint_part part = bth_receipt_part(receipt, i);
        check_part(ticket, &part);
    }
    for (size_t i = 0; i < ticket->n_storages; i++)
        has_empty |= ticket->storages[i].nbytes == 0; /* no outline has such */
    if (ticket->n_writers == 1 && ticket->n_storages > 0 && !has_empty) {
        berth_plan *plan = plan_of(ticket, tree);
        is_accepted =
            check_status(bth_joint_parts_make(ticket, receipt, plan, &parts, &error), &error);
        if (is_accepted)
            check_rest(ticket, plan, &parts);
        bth_joint_parts_free_all(&parts);
        berth_plan_free(plan);
    }
    berth_tree_free(tree);
}

/* ---- messages of an exchange ---- */

static void check_run(const bth_ticket *ticket, bth_range window, const bth_piece *piece,
                      uint32_t i)
{
    const bth_ticket_storage *storage = &ticket->storages[piece->storage];
    uint64_t at = piece->at + (uint64_t)i * piece->stride;

    MUST(at >= piece->at && at < storage->nbytes && piece->nbytes <= storage->nbytes - at,
         "a run is not in its storage");
    MUST(storage->data_offset + at >= window.offset &&
             storage->data_offset + at + piece->nbytes <= window.offset + window.nbytes,
         "a run is not in the window");
    MUST(i == 0 || piece->stride >= piece->nbytes, "runs overlap");
}

/* Any bytes as a message to the owner of the first window, and of the one with the last byte. */
static void check_message(const bth_ticket *ticket, const uint8_t *bytes, size_t nbytes)
{
    for (int is_last = 0; is_last < 2; is_last++) {
        const uint64_t offset = is_last ? ticket->file_nbytes & ~(BTH_WINDOW_NBYTES - 1) : 0;
        const bth_range window = {offset, BTH_WINDOW_NBYTES};
        bth_cursor cursor = bth_cursor_make(bytes, nbytes);
        bth_piece piece;
        berth_error error = {0};
        while (bth_cursor_left(&cursor) > 0 &&
               check_status(bth_piece_read(ticket, window, &cursor, &piece, &error), &error)) {
            MUST(piece.count > 0 && piece.bytes >= bytes &&
                     (uint64_t)piece.nbytes * piece.count <= (size_t)(bytes + nbytes - piece.bytes),
                 "a piece has bytes of others");
            check_run(ticket, window, &piece, 0);
            check_run(ticket, window, &piece, piece.count - 1);
        }
    }
}

void check_input(const uint8_t *bytes, size_t nbytes)
{
    bth_ticket ticket;
    bth_receipt receipt;
    berth_error error = {0};

    if (nbytes < 2)
        return;
    blobs made = blobs_of(bytes, nbytes);
    count_memory_from_now();
    size_t before_nbytes = live_nbytes;
    double since = processor_seconds();
    bool is_good =
        check_status(bth_ticket_read(made.ticket, made.ticket_nbytes, &ticket, &error), &error);
    MUST(most_nbytes - before_nbytes <= made.ticket_nbytes, "J4: %zu bytes of memory for %zu",
         most_nbytes - before_nbytes, made.ticket_nbytes);
    if (is_good) {
        check_ticket(&ticket);
        check_message(&ticket, made.receipt, made.receipt_nbytes);
        bth_error_clear(&error);
        if (check_status(
                bth_receipt_read(&ticket, made.receipt, made.receipt_nbytes, &receipt, &error),
                &error))
            check_receipt(&ticket, &receipt);
    }
    bth_ticket_free_all(&ticket);
    check_time(since, nbytes);
    MUST(live_nbytes == before_nbytes, "%zu bytes leak", live_nbytes - before_nbytes);
    free(made.ticket);
    free(made.receipt);
}

/* ---- changes: numbers, where they may be ---- */

size_t mutate(uint8_t *bytes, size_t nbytes, size_t most, unsigned number)
{
    static const uint64_t telling[] = {0,    1,          2,         4095,      4096,
                                       8192, UINT32_MAX, INT64_MAX, UINT64_MAX};

    nbytes = start_over(bytes, nbytes, most);
    if (nbytes < 16 || number % 3 == 0)
        return LLVMFuzzerMutate(bytes, nbytes, most);
    size_t at = 2 + random_below(nbytes - 10), n = random_below(2) ? 4 : 8;
    if (number % 3 == 1) {
        bth_put_integer(bytes + at, telling[random_below(sizeof telling / sizeof *telling)], n);
        return nbytes;
    }
    bth_cursor cursor = bth_cursor_make(bytes + at, n);
    bth_put_integer(bytes + at, bth_cursor_integer(&cursor, n) + random_below(33) - 16, n);
    return nbytes;
}

/* ---- seeds: a save with one writer ---- */

/* Two pieces of the first storage: a run, and two. */
static size_t put_message(uint8_t *out)
{
    static const uint32_t pieces[][5] = {{0, 0, 8, 8, 1}, {0, 12, 4, 8, 2}};
    uint8_t *begin = out;

    for (size_t i = 0; i < 2; i++) {
        out = bth_put_u64(bth_put_u32(out, pieces[i][0]), pieces[i][1]);
        for (size_t j = 2; j < 5; j++)
            out = bth_put_u32(out, pieces[i][j]);
        out = memset(out, 3, 8);
        out += 8;
    }
    /* What is read as a receipt, too, gets a checksum at its end. */
    memset(out, 0, BTH_BLOB_END_NBYTES);
    return (size_t)(out - begin) + BTH_BLOB_END_NBYTES;
}

typedef enum seed_kind {
    SEED_HALVES, /* each tensor in two slices */
    SEED_CHAIN,  /* in one */
    SEED_PATHS,  /* the same, with names that are paths, or do not give the path */
    SEED_MESSAGE /* with pieces in the place of the receipt */
} seed_kind;

static void seed_save(const char *folder, const char *name, int64_t rows, int64_t columns,
                      unsigned n_slices, seed_kind kind)
{
    const int64_t shape[] = {rows, columns};
    float *elements = calloc((size_t)(rows * columns), sizeof *elements);
    uint8_t *bytes = malloc(2 + 65535 + MAX_RECEIPT_NBYTES);
    berth_tree *tree = berth_tree_new(NULL);
    berth_value *root = berth_make_dict(tree, BERTH_KIND_DICT);
    char *path = test_path(folder, name);
    berth_slice slices[16];
    size_t nbytes, n = n_slices < 8 ? n_slices : 8;
    berth_joint_info info;
    berth_joint *joint;
    berth_error error;
    void *receipt;

    for (size_t i = 0; i < n; i++) {
        static const char *const short_names[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
        static const char *const keys[] = {"it's", "a.b", "['x']", "", ".h", "a\"b'", "\n", "c"};
        static const char *const paths[] = {"[\"it's\"]", "['a.b']",     "[\"['x']\"]", "['']",
                                            "['.h']",     "['a\"b\\'']", "\n",          "c"};
        const char *const *names = kind == SEED_PATHS ? paths : short_names;
        berth_dict_set(root, kind == SEED_PATHS ? keys[i] : names[i],
                       test_tensor(tree, BERTH_FLOAT32, BERTH_ELSEWHERE, 2, shape));
        slices[2 * i] = berth_slice_bytes(names[i], 0, (uint64_t)rows * 4, elements);
        slices[2 * i + 1] = berth_slice_bytes(names[i], (uint64_t)rows * 4,
                                              (uint64_t)(rows * (columns - 1)) * 4, elements);
        if (kind == SEED_CHAIN || kind == SEED_PATHS)
            slices[i] = berth_slice_whole(names[i], elements);
    }
    MUST(berth_joint_begin(path, root, 1, NULL, &joint, &info, &error) == 0, "%s", error.message);
    MUST(berth_joint_write(info.ticket, info.ticket_nbytes, 0, slices,
                           kind == SEED_CHAIN || kind == SEED_PATHS ? n : 2 * n, NULL, &receipt,
                           &nbytes, &error) == 0 &&
             nbytes <= MAX_RECEIPT_NBYTES,
         "%s", error.message);
    (void)bth_put_u16(bytes, info.ticket_nbytes);
    memcpy(bytes + 2, info.ticket, info.ticket_nbytes);
    /* The same bytes each time. */
    memset(bytes + 2 + IDENTITY_AT, 7, BTH_JOINT_IDENTITY_NBYTES);
    memcpy(bytes + 2 + info.ticket_nbytes, receipt, nbytes);
    memset(bytes + 2 + info.ticket_nbytes + IDENTITY_AT, 7, BTH_JOINT_IDENTITY_NBYTES);
    size_t all = 2 + info.ticket_nbytes + nbytes;
    if (kind == SEED_MESSAGE)
        all = 2 + info.ticket_nbytes + put_message(bytes + 2 + info.ticket_nbytes);
    berth_free(receipt);
    berth_joint_abort(joint);
    berth_tree_free(tree);
    seed(name, bytes, all); /* memory is counted from here on */
    free(path);
    free(bytes);
    free(elements);
}

void make_seeds(void)
{
    char *folder = test_folder_new();

    seed_save(folder, "small", 2, 3, 1, SEED_HALVES);
    seed_save(folder, "several", 5, 60, 5, SEED_HALVES);
    seed_save(folder, "middles", 1000, 9, 1, SEED_HALVES);
    seed_save(folder, "chain", 10, 100, 4, SEED_CHAIN);
    seed_save(folder, "paths", 3, 40, 8, SEED_PATHS);
    seed_save(folder, "pieces", 5, 60, 1, SEED_MESSAGE);
    test_folder_remove(folder);
    seed_folder("tests/fuzz/found/joint", "");
}

#ifndef BERTH_FUZZER

Test(tickets_and_receipts, keep_all_properties)
{
    cr_assert_geq(replay_seeds(test_is_long() ? 20000 : 3000), 6);
}
#endif
