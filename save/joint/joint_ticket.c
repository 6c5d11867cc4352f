/* SPDX-License-Identifier: BSD-3-Clause */
/* Tickets and receipts, written, and read as the file of a stranger (J4). */
#include "save/joint/joint_ticket.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "format/names/names.h"
#include "format/values/value.h"
#include "io/direct.h"
#include "save/temporary.h"

#define MAGIC_NBYTES 8

#define STORAGE_NBYTES 24
#define MIN_TENSOR_NBYTES 34 /* rank 0, texts of no bytes */

/* ---- tickets and receipts ---- */

typedef enum blob_kind { BLOB_TICKET, BLOB_RECEIPT } blob_kind;

static const struct {
    const char *magic;
    const char *name;
} kinds[] = {[BLOB_TICKET] = {"BerthTkt", "ticket"}, [BLOB_RECEIPT] = {"BerthRct", "receipt"}};

/* Checks kind, version and CRC. *cursor is behind the head, and ends before the CRC. */
static int blob_begin_reading(blob_kind kind, const void *bytes, size_t nbytes, bth_cursor *cursor,
                              uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], berth_error *error)
{
    const char *name = kinds[kind].name;

    if (!bytes)
        return bth_fail_argument(error, "the %s is NULL", name);
    if (nbytes < BTH_BLOB_HEAD_NBYTES + BTH_BLOB_END_NBYTES)
        return bth_fail_status(error, BERTH_E_TRUNCATED, "the %s has only %zu bytes", name, nbytes);
    if (memcmp(bytes, kinds[kind].magic, MAGIC_NBYTES) != 0)
        return bth_fail_argument(error, "these bytes are no %s", name);
    size_t end_at = nbytes - BTH_BLOB_END_NBYTES;
    *cursor = bth_cursor_make(bytes, end_at);
    (void)bth_cursor_bytes(cursor, MAGIC_NBYTES);
    uint32_t version = bth_cursor_u32(cursor);
    if (version != BTH_JOINT_VERSION)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the %s has version %u, this library has version %d: all processes "
                               "of a save need the same Berth",
                               name, version, BTH_JOINT_VERSION);
    const uint8_t *found = bth_cursor_bytes(cursor, BTH_JOINT_IDENTITY_NBYTES);
    assert(found); /* by the length above */
    memcpy(identity, found, BTH_JOINT_IDENTITY_NBYTES);
    bth_cursor end = bth_cursor_make((const uint8_t *)bytes + end_at, BTH_BLOB_END_NBYTES);
    if (bth_cursor_u32(&end) != bth_crc32(0, bytes, end_at))
        return bth_fail_status(error, BERTH_E_CHECKSUM,
                               "the %s does not have its checksum: it was changed or cut on its "
                               "way",
                               name);
    return 0;
}

/* NULL: it is cut, holds a NUL, or has none behind it. */
static const char *blob_read_text(bth_cursor *cursor)
{
    size_t nbytes = bth_cursor_u32(cursor);
    const char *text = (const char *)bth_cursor_bytes(cursor, nbytes);
    const uint8_t *end = bth_cursor_bytes(cursor, 1);

    return text && end && *end == 0 && !memchr(text, 0, nbytes) ? text : NULL;
}

/* These return where the next field begins. */
static uint8_t *blob_put_head(uint8_t *out, blob_kind kind,
                              const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES])
{
    memcpy(out, kinds[kind].magic, MAGIC_NBYTES);
    out = bth_put_u32(out + MAGIC_NBYTES, BTH_JOINT_VERSION);
    memcpy(out, identity, BTH_JOINT_IDENTITY_NBYTES);
    return out + BTH_JOINT_IDENTITY_NBYTES;
}

static uint8_t *blob_put_text(uint8_t *out, const char *text)
{
    size_t nbytes = strlen(text);

    out = bth_put_u32(out, nbytes);
    memcpy(out, text, nbytes + 1);
    return out + nbytes + 1;
}

void bth_blob_put_end(uint8_t *bytes, size_t nbytes)
{
    size_t end = nbytes - BTH_BLOB_END_NBYTES;

    (void)bth_put_u32(bytes + end, bth_crc32(0, bytes, end));
}

/* ---- reading a ticket ---- */

/* It has wrong numbers though its CRC is right. */
static int ticket_fail(const char *what, berth_error *error)
{
    return bth_fail_argument(error, "the ticket is invalid: %s", what);
}

/* J5: a writer writes to no file but a temporary of a save. */
static int ticket_read_head(bth_ticket *ticket, bth_cursor *cursor, berth_error *error)
{
    berth_error ignored;

    ticket->n_writers = bth_cursor_u32(cursor);
    uint32_t block_nbytes = bth_cursor_u32(cursor);
    ticket->block_nbytes = block_nbytes;
    uint32_t compute_crc32 = bth_cursor_u32(cursor);
    ticket->compute_crc32 = compute_crc32 == 1;
    ticket->durability = bth_cursor_u32(cursor);
    uint32_t is_big_endian = bth_cursor_u32(cursor);
    ticket->alignment = bth_cursor_u32(cursor);
    ticket->file_nbytes = bth_cursor_u64(cursor);
    if (ticket->n_writers == 0 || ticket->n_writers > BERTH_MAX_WRITERS ||
        block_nbytes < BTH_DIRECT_BLOCK_NBYTES || block_nbytes > BTH_MAX_DIRECT_BLOCK_NBYTES ||
        (block_nbytes & (block_nbytes - 1)) != 0 || compute_crc32 > 1 ||
        ticket->durability > BTH_DURABILITY_FULL || is_big_endian > 1 ||
        ticket->file_nbytes > INT64_MAX)
        return ticket_fail("an option", error);
    if (is_big_endian != BTH_MACHINE_IS_BIG_ENDIAN)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the coordinator's machine has another byte order");
    ticket->path = blob_read_text(cursor);
    ticket->folder = blob_read_text(cursor);
    ticket->temporary = blob_read_text(cursor);
    ticket->archive = blob_read_text(cursor);
    if (!ticket->folder || !ticket->temporary ||
        (ticket->folder[0] == '\0'
             ? !bth_ticket_is_of_object(ticket)
             : ticket->folder[0] != '/' || !bth_temporary_is_name(ticket->temporary)))
        return ticket_fail("the place of the file", error);
    bth_error_clear(&ignored);
    if (!ticket->archive || bth_check_archive_name(ticket->archive, &ignored) < 0)
        return ticket_fail("the archive name", error);
    ticket->n_storages = bth_cursor_u32(cursor);
    ticket->n_tensors = bth_cursor_u32(cursor);
    return 0;
}

static int ticket_read_storages(bth_ticket *ticket, bth_cursor *cursor, berth_error *error)
{
    const size_t nbytes =
        bth_array_nbytes(ticket->n_storages + (size_t)1, sizeof *ticket->storages);
    const size_t short_name_nbytes = strlen(ticket->archive) + strlen("/data/0");
    uint64_t behind = 0; /* where the next header can be */
    bth_layout_entry layout;

    if (ticket->n_storages > bth_cursor_left(cursor) / STORAGE_NBYTES ||
        ticket->n_storages > BTH_MAX_JOINT_STORAGES)
        return ticket_fail("the number of storages", error);
    ticket->storages = bth_allocate(nbytes);
    if (!ticket->storages)
        return bth_fail_memory(error, nbytes);
    for (size_t i = 0; i < ticket->n_storages; i++) {
        bth_ticket_storage *storage = &ticket->storages[i];
        size_t name_nbytes = short_name_nbytes;
        storage->record = bth_cursor_u32(cursor);
        for (uint32_t number = storage->record; number >= 10; number /= 10)
            name_nbytes++;
        uint32_t swap_nbytes = bth_cursor_u32(cursor);
        bool swap_is_valid =
            swap_nbytes == 1 || swap_nbytes == 2 || swap_nbytes == 4 || swap_nbytes == 8;
        uint64_t header_offset = bth_cursor_u64(cursor);
        storage->nbytes = bth_cursor_u64(cursor);
        if (header_offset < behind || !swap_is_valid || storage->nbytes % swap_nbytes != 0 ||
            bth_layout_entry_compute(header_offset, name_nbytes, storage->nbytes, ticket->alignment,
                                     &layout) < 0 ||
            layout.next_offset > ticket->file_nbytes)
            return ticket_fail("a storage", error);
        storage->swap_nbytes = swap_nbytes & 15;
        storage->is_next = behind > 0 && header_offset == behind;
        storage->header_nbytes = (uint32_t)(layout.data_offset - header_offset) & 0x7ffffff;
        storage->data_offset = layout.data_offset;
        behind = layout.next_offset;
    }
    return 0;
}

/* Reads one, and checks only what reading needs. */
static bool tensor_read(bth_cursor *cursor, bth_ticket_tensor *tensor)
{
    tensor->storage = bth_cursor_u32(cursor);
    uint32_t dtype = bth_cursor_u32(cursor), rank = bth_cursor_u32(cursor);
    uint32_t is_contiguous = bth_cursor_u32(cursor);
    tensor->offset = bth_cursor_u64(cursor);
    if (!cursor->good || dtype >= BERTH_DTYPE_COUNT || rank > BERTH_MAX_RANK || is_contiguous > 1)
        return false;
    tensor->dtype = (berth_dtype)dtype;
    tensor->rank = (int32_t)rank;
    tensor->is_contiguous = is_contiguous;
    for (uint32_t i = 0; i < rank; i++)
        tensor->shape[i] = (int64_t)bth_cursor_u64(cursor);
    tensor->name = blob_read_text(cursor);
    tensor->path = blob_read_text(cursor);
    return tensor->name && tensor->path &&
           (!tensor->path[0] ||
            (bth_name_is_path(tensor->path) && !bth_name_is_path(tensor->name)));
}

/* A contiguous tensor lies inside its storage; of others no slice is taken. */
static bool tensor_is_valid(const bth_ticket *ticket, const bth_ticket_tensor *tensor)
{
    const berth_tensor plain = {
        .dtype = tensor->dtype, .rank = tensor->rank, .shape = tensor->shape};
    int64_t numel;

    if (tensor->storage >= ticket->n_storages || tensor->dtype == BERTH_DTYPE_NONE ||
        !bth_shape_numel(tensor->shape, tensor->rank, &numel))
        return false;
    uint64_t nbytes = ticket->storages[tensor->storage].nbytes, own;
    for (int32_t i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] < 0)
            return false;
    if (!bth_try_multiply((uint64_t)numel, berth_dtype_nbytes(tensor->dtype), &own))
        return false;
    own = berth_tensor_nbytes(&plain);
    return !tensor->is_contiguous || own == 0 ||
           (tensor->offset <= nbytes && own <= nbytes - tensor->offset);
}

int bth_ticket_read(const void *bytes, size_t nbytes, bth_ticket *ticket, berth_error *error)
{
    bth_ticket_tensor tensor;
    bth_cursor cursor;

    *ticket = (bth_ticket){.bytes = bytes, .nbytes = nbytes};
    if (blob_begin_reading(BLOB_TICKET, bytes, nbytes, &cursor, ticket->identity, error) < 0 ||
        ticket_read_head(ticket, &cursor, error) < 0 ||
        ticket_read_storages(ticket, &cursor, error) < 0)
        return error->code;
    if (ticket->n_tensors > bth_cursor_left(&cursor) / MIN_TENSOR_NBYTES)
        return ticket_fail("the number of tensors", error);
    ticket->tensors_at = cursor.at;
    for (size_t i = 0; i < ticket->n_tensors; i++)
        if (!tensor_read(&cursor, &tensor) || !tensor_is_valid(ticket, &tensor))
            return ticket_fail("a tensor", error);
    return bth_cursor_left(&cursor) == 0 ? 0 : ticket_fail("bytes follow its end", error);
}

void bth_ticket_free_all(bth_ticket *ticket)
{
    bth_release(ticket->storages);
    ticket->storages = NULL;
}

bool bth_ticket_next_tensor(const bth_ticket *ticket, size_t *at, bth_ticket_tensor *tensor)
{
    size_t end = ticket->nbytes - BTH_BLOB_END_NBYTES;
    bth_cursor cursor = bth_cursor_make(ticket->bytes, end);

    cursor.at = *at;
    if (*at >= end || !tensor_read(&cursor, tensor)) /* it was read before */
        return false;
    *at = cursor.at;
    return true;
}

size_t bth_ticket_find_storage(const bth_ticket *ticket, uint64_t offset)
{
    size_t low = 0, high = ticket->n_storages;

    while (low < high) { /* the first that ends behind it */
        size_t middle = low + (high - low) / 2;
        const bth_ticket_storage *storage = &ticket->storages[middle];
        if (storage->data_offset + storage->nbytes > offset)
            high = middle;
        else
            low = middle + 1;
    }
    return low < ticket->n_storages && ticket->storages[low].data_offset <= offset
               ? low
               : ticket->n_storages;
}

const char *bth_ticket_name_of_storage(const bth_ticket *ticket, size_t storage)
{
    bth_ticket_tensor tensor;
    const char *path = "?";

    for (size_t at = ticket->tensors_at; bth_ticket_next_tensor(ticket, &at, &tensor);) {
        if (tensor.storage == storage && !bth_name_is_path(tensor.name))
            return tensor.name;
        if (tensor.storage == storage)
            path = tensor.name;
    }
    return path;
}

/* ---- writing a ticket, from the outline of a joint save ---- */

/* The ticket that is written. */
typedef struct outline_ticket {
    const berth_plan *plan;
    uint32_t *places; /* by storage->index: the place in the ticket + 1; 0: it is not in it */
    bool *is_named;   /* by the place: a tensor is on it */
    uint32_t n_storages;
    uint32_t n_tensors;
    bth_name_text name, path; /* of one tensor */
    size_t counts_at;         /* where the numbers of storages and tensors are */
    uint8_t *bytes;
    size_t nbytes;
    size_t room;
} outline_ticket;

bool bth_plan_record_is_elsewhere(const berth_plan *plan, size_t i)
{
    const bth_plan_record *record = &plan->records[i];
    uint64_t at = 0;

    if (!record->storage || record->layout.nbytes == 0)
        return false;
    const berth_storage *bottom = bth_storage_resolve_view(record->storage, &at);
    return !bottom->data && !bottom->read && !bottom->device;
}

static uint64_t text_nbytes(const char *text)
{
    return 4 + strlen(text) + 1;
}

/* Room for `nbytes` more, which the caller writes; NULL on failure. */
static uint8_t *outline_extend(outline_ticket *out, uint64_t nbytes, berth_error *error)
{
    uint8_t *grown = bth_items_grow(out->bytes, out->nbytes, (size_t)nbytes, &out->room, 1, error);

    if (!grown)
        return NULL;
    out->bytes = grown;
    out->nbytes += (size_t)nbytes;
    return grown + out->nbytes - nbytes;
}

static int outline_put_head_and_storages(outline_ticket *out, const bth_ticket *ticket,
                                         berth_error *error)
{
    const berth_plan *plan = out->plan;
    uint64_t nbytes = BTH_BLOB_HEAD_NBYTES + 6 * 4 + 8 + 2 * 4 + text_nbytes(ticket->path) +
                      text_nbytes(ticket->folder) + text_nbytes(ticket->temporary) +
                      text_nbytes(ticket->archive);
    uint8_t *at = outline_extend(out, nbytes, error);
    uint32_t number = 0;

    if (!at)
        return error->code;
    at = blob_put_head(at, BLOB_TICKET, ticket->identity);
    at = bth_put_u32(at, ticket->n_writers);
    at = bth_put_u32(at, ticket->block_nbytes);
    at = bth_put_u32(at, ticket->compute_crc32);
    at = bth_put_u32(at, (uint64_t)ticket->durability);
    at = bth_put_u32(at, BTH_MACHINE_IS_BIG_ENDIAN);
    at = bth_put_u32(at, ticket->alignment);
    at = bth_put_u64(at, ticket->file_nbytes);
    at = blob_put_text(at, ticket->path);
    at = blob_put_text(at, ticket->folder);
    at = blob_put_text(at, ticket->temporary);
    at = blob_put_text(at, ticket->archive);
    out->counts_at = (size_t)(at - out->bytes);
    for (size_t i = 0; i < plan->n_records; number += bth_plan_record_is_storage(plan, i++)) {
        const bth_plan_record *record = &plan->records[i];
        if (!bth_plan_record_is_elsewhere(plan, i))
            continue;
        if (!(at = outline_extend(out, STORAGE_NBYTES, error)))
            return error->code;
        at = bth_put_u32(at, number);
        at = bth_put_u32(at, record->swap_nbytes);
        at = bth_put_u64(at, record->layout.header_offset);
        (void)bth_put_u64(at, record->layout.nbytes);
        out->places[record->storage->index] = ++out->n_storages;
    }
    return 0;
}

static int outline_put_tensor(outline_ticket *out, const bth_names *names, size_t i,
                              berth_error *error)
{
    const berth_tensor *tensor = berth_as_tensor(bth_names_tensor_value(names, i));
    int64_t elements;

    if (!tensor || !tensor->storage)
        return 0;
    const berth_storage *storage = bth_tensor_saved_storage(tensor, &elements);
    uint32_t place = out->places[storage->index];
    if (place == 0) /* its bytes are here */
        return 0;
    uint64_t offset = (uint64_t)elements / (unsigned)bth_dtype_elements_per_item(tensor->dtype) *
                      berth_dtype_nbytes(tensor->dtype);
    out->is_named[place - 1] = true;
    if (bth_names_write_tensor_name_and_path(names, i, &out->name, &out->path, error) < 0)
        return error->code;
    /* A path that follows from the name is left out. */
    const char *name = out->name.text, *path = out->path.text;
    size_t name_nbytes = out->name.nbytes;
    if (bth_name_is_path(name) ||
        (out->path.nbytes == name_nbytes + 4 && memcmp(path, "['", 2) == 0 &&
         memcmp(path + 2, name, name_nbytes) == 0))
        path = "";
    uint8_t *at = outline_extend(
        out, 4 * 4 + 8 + 8 * (uint64_t)tensor->rank + text_nbytes(name) + text_nbytes(path), error);
    if (!at)
        return error->code;
    at = bth_put_u32(at, place - 1);
    at = bth_put_u32(at, (uint64_t)tensor->dtype);
    at = bth_put_u32(at, (uint64_t)tensor->rank);
    at = bth_put_u32(at, berth_tensor_is_contiguous(tensor));
    at = bth_put_u64(at, offset);
    for (int32_t d = 0; d < tensor->rank; d++)
        at = bth_put_u64(at, (uint64_t)tensor->shape[d]);
    (void)blob_put_text(blob_put_text(at, name), path);
    out->n_tensors++;
    return 0;
}

int bth_ticket_write(const bth_ticket *ticket, const berth_plan *plan, const berth_value *outline,
                     uint8_t **bytes, size_t *nbytes, berth_error *error)
{
    const size_t n = bth_tree_n_storages(bth_value_tree(outline));
    outline_ticket out = {.plan = plan,
                          .places =
                              bth_allocate_zeroed(bth_array_nbytes(n + 1, sizeof *out.places)),
                          .is_named = bth_allocate_zeroed(plan->n_storages + 1)};
    bth_names *names = NULL;

    if (!out.places || !out.is_named)
        (void)bth_fail_memory(error, bth_array_nbytes(n + 1, sizeof *out.places));
    else if (outline_put_head_and_storages(&out, ticket, error) == 0)
        (void)bth_names_new(outline, &names, error);
    for (size_t i = 0; error->code == BERTH_OK && i < bth_names_tensor_count(names); i++)
        (void)outline_put_tensor(&out, names, i, error);
    for (size_t i = 0, place = 0; error->code == BERTH_OK && i < plan->n_records; i++)
        if (bth_plan_record_is_elsewhere(plan, i) && !out.is_named[place++])
            (void)bth_fail(error, BERTH_E_ARGUMENT, bth_plan_record_name(plan, i), BERTH_NO_OFFSET,
                           "no tensor of the outline is on it: its bytes must be in the outline");
    /* The end, and what is known only now. No more room is kept than is needed. */
    if (error->code == BERTH_OK && outline_extend(&out, BTH_BLOB_END_NBYTES, error)) {
        (void)bth_put_u32(bth_put_u32(out.bytes + out.counts_at, out.n_storages), out.n_tensors);
        bth_blob_put_end(out.bytes, out.nbytes);
        uint8_t *shrunk = bth_reallocate(out.bytes, out.nbytes);
        *bytes = shrunk ? shrunk : out.bytes;
        *nbytes = out.nbytes;
        out.bytes = NULL;
    }
    bth_names_free(names);
    bth_release(out.places);
    bth_release(out.is_named);
    bth_release(out.name.text);
    bth_release(out.path.text);
    bth_release(out.bytes);
    return error->code;
}

/* ---- receipts: parts ---- */

#define PART_NBYTES (4 + 4 + 8 + 8 + BTH_ID_START_NBYTES)
/* Beside the number of the storage. */
#define PART_IS_CHAINED_BEHIND (UINT32_C(1) << 30)
#define PART_IS_CHAINED_BEFORE (UINT32_C(1) << 31)
#define HEAD_NBYTES (BTH_BLOB_HEAD_NBYTES + 4 + 8)

/* J2 */
bth_joint_split bth_joint_part_split(const bth_ticket *ticket, const bth_joint_part *part)
{
    uint64_t mask = ticket->block_nbytes - 1;
    uint64_t begin = ticket->storages[part->storage].data_offset + part->at;
    uint64_t end = begin + part->nbytes;
    uint64_t middle = part->is_chained_before ? begin : (begin + mask) & ~mask;
    uint64_t tail = part->is_chained_behind ? end : end & ~mask;

    if (middle >= tail)
        return (bth_joint_split){.head_nbytes = part->nbytes};
    return (bth_joint_split){middle - begin, {middle, tail - middle}, end - tail};
}

bool bth_joint_parts_can_chain(const bth_ticket *ticket, const bth_joint_part *before,
                               const bth_joint_part *part)
{
    const bth_ticket_storage *storage = &ticket->storages[part->storage];

    return part->storage == before->storage + 1 && storage->is_next && before->at == 0 &&
           before->nbytes == storage[-1].nbytes && part->at == 0 && part->nbytes == storage->nbytes;
}

/* ---- receipts: writing ---- */

/* Of the writer's bytes, in the byte order of the file. */
static uint8_t *receipt_put_fragment(uint8_t *out, const bth_ticket_storage *storage,
                                     const uint8_t *bytes, uint64_t nbytes)
{
    if (nbytes > 0)
        bth_swap_bytes(out, bytes, (size_t)nbytes, storage->swap_nbytes);
    return out + nbytes;
}

/* The parts are in memory: no sum overflows. */
int bth_receipt_write(const bth_ticket *ticket, uint32_t writer, const bth_slice_part *parts,
                      size_t n, const uint8_t *kept, uint8_t **bytes, size_t *nbytes,
                      berth_error *error)
{
    uint64_t all = HEAD_NBYTES + (uint64_t)n * PART_NBYTES + BTH_BLOB_END_NBYTES;

    for (size_t i = 0; i < n; i++) {
        bth_joint_split split = bth_joint_part_split(ticket, &parts[i].part);
        all += split.head_nbytes + split.tail_nbytes;
    }
    *nbytes = (size_t)all;
    *bytes = *nbytes == all ? bth_allocate(*nbytes) : NULL;
    if (!*bytes)
        return bth_fail_memory(error, all);
    uint8_t *out = blob_put_head(*bytes, BLOB_RECEIPT, ticket->identity);
    out = bth_put_u64(bth_put_u32(out, writer), n);
    uint8_t *fragment = out + n * PART_NBYTES;
    for (size_t i = 0; i < n; i++) {
        const bth_joint_part *part = &parts[i].part;
        const bth_ticket_storage *storage = &ticket->storages[part->storage];
        bth_joint_split split = bth_joint_part_split(ticket, part);
        const uint8_t *head = parts[i].bytes ? parts[i].bytes : kept + parts[i].kept_at;
        uint64_t tail_at = parts[i].bytes ? part->nbytes - split.tail_nbytes : split.head_nbytes;
        uint32_t flags = (part->is_chained_behind ? PART_IS_CHAINED_BEHIND : 0) |
                         (part->is_chained_before ? PART_IS_CHAINED_BEFORE : 0);
        out = bth_put_u32(out, part->storage | flags);
        out = bth_put_u32(out, part->crc32);
        out = bth_put_u64(out, part->at);
        out = bth_put_u64(out, part->nbytes);
        memcpy(out, part->start, sizeof part->start);
        out += sizeof part->start;
        fragment = receipt_put_fragment(fragment, storage, head, split.head_nbytes);
        fragment = receipt_put_fragment(fragment, storage, head + tail_at, split.tail_nbytes);
    }
    bth_blob_put_end(*bytes, *nbytes);
    return 0;
}

/* ---- receipts: reading ---- */

bth_joint_part bth_receipt_part(const bth_receipt *receipt, size_t i)
{
    bth_cursor cursor = bth_cursor_make(receipt->parts + i * PART_NBYTES, PART_NBYTES);
    uint32_t storage = bth_cursor_u32(&cursor);
    bth_joint_part part = {.storage = storage & BTH_MAX_JOINT_STORAGES,
                           .is_chained_behind = (storage & PART_IS_CHAINED_BEHIND) != 0,
                           .is_chained_before = (storage & PART_IS_CHAINED_BEFORE) != 0};

    part.crc32 = bth_cursor_u32(&cursor);
    part.at = bth_cursor_u64(&cursor);
    part.nbytes = bth_cursor_u64(&cursor);
    memcpy(part.start, bth_cursor_bytes(&cursor, sizeof part.start), sizeof part.start);
    return part;
}

static int receipt_fail(const bth_receipt *receipt, const char *what, berth_error *error)
{
    return bth_fail_argument(error, "the receipt of writer %u is invalid: %s", receipt->writer,
                             what);
}

/* J4. `before`: the part before; nbytes 0: there is none. */
static bool part_is_valid(const bth_ticket *ticket, const bth_joint_part *part,
                          const bth_joint_part *before)
{
    static const uint8_t zeros[BTH_ID_START_NBYTES];

    if (part->storage >= ticket->n_storages || part->storage < before->storage ||
        part->is_chained_before != before->is_chained_behind)
        return false;
    const bth_ticket_storage *storage = &ticket->storages[part->storage];
    if (part->nbytes == 0 || part->at > storage->nbytes ||
        part->nbytes > storage->nbytes - part->at ||
        (part->storage == before->storage && part->at < before->at + before->nbytes) ||
        (part->is_chained_before && !bth_joint_parts_can_chain(ticket, before, part)))
        return false;
    bool is_in_file = bth_joint_part_split(ticket, part).middle.nbytes > 0;
    return is_in_file ? ticket->compute_crc32 || part->crc32 == 0
                      : !bth_joint_part_is_chained(part) && part->crc32 == 0 &&
                            memcmp(part->start, zeros, sizeof zeros) == 0;
}

int bth_receipt_read(const bth_ticket *ticket, const void *bytes, size_t nbytes,
                     bth_receipt *receipt, berth_error *error)
{
    uint8_t identity[BTH_JOINT_IDENTITY_NBYTES];
    bth_joint_part before = {0};
    bth_cursor cursor;

    *receipt = (bth_receipt){.writer = UINT32_MAX};
    if (blob_begin_reading(BLOB_RECEIPT, bytes, nbytes, &cursor, identity, error) < 0)
        return error->code;
    receipt->writer = bth_cursor_u32(&cursor);
    uint64_t n_parts = bth_cursor_u64(&cursor);
    if (!cursor.good)
        return bth_fail_argument(error, "the receipt is invalid: it ends too early");
    if (memcmp(identity, ticket->identity, sizeof identity) != 0)
        return bth_fail_argument(error, "the receipt of writer %u is of another save",
                                 receipt->writer);
    if (receipt->writer >= ticket->n_writers)
        return bth_fail_argument(error, "the receipt is of writer %u, the save has %u writers",
                                 receipt->writer, ticket->n_writers);
    if (n_parts > bth_cursor_left(&cursor) / PART_NBYTES)
        return receipt_fail(receipt, "the number of parts", error);
    receipt->n_parts = (size_t)n_parts;
    receipt->parts = bth_cursor_bytes(&cursor, receipt->n_parts * PART_NBYTES);
    uint64_t fragments_nbytes = bth_cursor_left(&cursor);
    receipt->fragments = bth_cursor_bytes(&cursor, fragments_nbytes);
    for (size_t i = 0; i < receipt->n_parts; i++) {
        bth_joint_part part = bth_receipt_part(receipt, i);
        if (!part_is_valid(ticket, &part, &before))
            return receipt_fail(receipt, "a part", error);
        before = part;
        bth_joint_split split = bth_joint_part_split(ticket, &part);
        if (split.head_nbytes + split.tail_nbytes > fragments_nbytes)
            return receipt_fail(receipt, "fragments are missing", error);
        fragments_nbytes -= split.head_nbytes + split.tail_nbytes;
    }
    if (before.is_chained_behind)
        return receipt_fail(receipt, "its last part is chained to nothing", error);
    return fragments_nbytes == 0 ? 0 : receipt_fail(receipt, "bytes follow its end", error);
}
