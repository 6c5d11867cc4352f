/* SPDX-License-Identifier: BSD-3-Clause */
/* What tickets and receipts have in common. Reading a ticket, as the file of a stranger (J4). */
#include "save/joint/joint_ticket.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/checksum.h"
#include "format/values/value.h"
#include "io/direct.h"
#include "save/temporary.h"

#define MAGIC_NBYTES 8

#define STORAGE_NBYTES 24
#define MIN_TENSOR_NBYTES 34 /* rank 0, texts of no bytes */

/* ---- tickets and receipts ---- */

static const struct {
    const char *magic;
    const char *name;
} kinds[] = {
    [BTH_BLOB_TICKET] = {"BerthTkt", "ticket"}, [BTH_BLOB_RECEIPT] = {"BerthRct", "receipt"}};

int bth_blob_fail(bth_blob_kind kind, const char *what, berth_error *error)
{
    return bth_fail_argument(error, "the %s is invalid: %s", kinds[kind].name, what);
}

int bth_blob_begin_reading(bth_blob_kind kind, const void *bytes, size_t nbytes, bth_cursor *cursor,
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

const char *bth_blob_read_text(bth_cursor *cursor)
{
    size_t nbytes = bth_cursor_u32(cursor);
    const char *text = (const char *)bth_cursor_bytes(cursor, nbytes);
    const uint8_t *end = bth_cursor_bytes(cursor, 1);

    if (!text || !end || *end != 0 || memchr(text, 0, nbytes))
        return NULL;
    return text;
}

uint8_t *bth_blob_put_head(uint8_t *out, bth_blob_kind kind,
                           const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES])
{
    memcpy(out, kinds[kind].magic, MAGIC_NBYTES);
    out = bth_put_u32(out + MAGIC_NBYTES, BTH_JOINT_VERSION);
    memcpy(out, identity, BTH_JOINT_IDENTITY_NBYTES);
    return out + BTH_JOINT_IDENTITY_NBYTES;
}

uint8_t *bth_blob_put_text(uint8_t *out, const char *text)
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

/* ---- a ticket ---- */

static int ticket_fail(const char *what, berth_error *error)
{
    return bth_blob_fail(BTH_BLOB_TICKET, what, error);
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
    if (!cursor->good || ticket->n_writers == 0 || ticket->n_writers > BERTH_MAX_WRITERS ||
        block_nbytes < BTH_DIRECT_BLOCK_NBYTES || block_nbytes > BTH_MAX_DIRECT_BLOCK_NBYTES ||
        (block_nbytes & (block_nbytes - 1)) != 0 || compute_crc32 > 1 ||
        ticket->durability > BTH_DURABILITY_FULL || is_big_endian > 1 ||
        ticket->file_nbytes > INT64_MAX)
        return ticket_fail("an option", error);
    if (is_big_endian != BTH_MACHINE_IS_BIG_ENDIAN)
        return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                               "the coordinator's machine has another byte order");
    ticket->path = bth_blob_read_text(cursor);
    ticket->folder = bth_blob_read_text(cursor);
    ticket->temporary = bth_blob_read_text(cursor);
    ticket->archive = bth_blob_read_text(cursor);
    if (!ticket->path || !ticket->folder || ticket->folder[0] != '/' ||
        strlen(ticket->folder) >= PATH_MAX || !ticket->temporary ||
        !bth_temporary_is_name(ticket->temporary))
        return ticket_fail("the place of the file", error);
    bth_error_clear(&ignored);
    if (!ticket->archive || bth_check_archive_name(ticket->archive, &ignored) < 0)
        return ticket_fail("the archive name", error);
    ticket->n_storages = bth_cursor_u32(cursor);
    ticket->n_tensors = bth_cursor_u32(cursor);
    return 0;
}

/* ---- storages ---- */

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

/* ---- tensors ---- */

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
    tensor->name = bth_blob_read_text(cursor);
    tensor->path = bth_blob_read_text(cursor);
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
    if (bth_blob_begin_reading(BTH_BLOB_TICKET, bytes, nbytes, &cursor, ticket->identity, error) <
            0 ||
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

/* ---- one after the other ---- */

bool bth_ticket_tensor_at(const bth_ticket *ticket, size_t *at, bth_ticket_tensor *tensor)
{
    size_t end = ticket->nbytes - BTH_BLOB_END_NBYTES;
    bth_cursor cursor = bth_cursor_make(ticket->bytes, end);

    cursor.at = *at;
    if (*at == end || !tensor_read(&cursor, tensor)) /* it was read before */
        return false;
    *at = cursor.at;
    return true;
}

const char *bth_ticket_name_of_storage(const bth_ticket *ticket, size_t storage)
{
    bth_ticket_tensor tensor;
    const char *path = "?";

    for (size_t at = ticket->tensors_at; bth_ticket_tensor_at(ticket, &at, &tensor);) {
        if (tensor.storage == storage && !bth_name_is_path(tensor.name))
            return tensor.name;
        if (tensor.storage == storage)
            path = tensor.name;
    }
    return path;
}
