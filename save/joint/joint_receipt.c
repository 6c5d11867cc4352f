/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_receipt.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"

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

static bool part_is_whole(const bth_ticket *ticket, const bth_joint_part *part)
{
    return part->at == 0 && part->nbytes == ticket->storages[part->storage].nbytes;
}

bool bth_joint_parts_are_neighbours(const bth_ticket *ticket, const bth_joint_part *before,
                                    const bth_joint_part *part)
{
    return part->storage == before->storage + 1 && ticket->storages[part->storage].is_next &&
           part_is_whole(ticket, before) && part_is_whole(ticket, part);
}

/* ---- writing ---- */

int bth_receipt_new(const bth_ticket *ticket, uint32_t writer, size_t n_parts,
                    uint64_t fragments_nbytes, uint8_t **bytes, size_t *nbytes, uint8_t **fragments,
                    berth_error *error)
{
    size_t parts_nbytes = bth_array_nbytes(n_parts, PART_NBYTES);
    uint64_t all;

    if (!bth_try_add(parts_nbytes, fragments_nbytes, &all) ||
        !bth_try_add(all, HEAD_NBYTES + BTH_BLOB_END_NBYTES, &all) || all > SIZE_MAX)
        return bth_fail_memory(error, UINT64_MAX);
    *nbytes = (size_t)all;
    *bytes = bth_allocate(*nbytes);
    if (!*bytes)
        return bth_fail_memory(error, all);
    uint8_t *out = bth_blob_put_head(*bytes, BTH_BLOB_RECEIPT, ticket->identity);
    out = bth_put_u64(bth_put_u32(out, writer), n_parts);
    *fragments = out + parts_nbytes;
    return 0;
}

void bth_receipt_complete(uint8_t *bytes, size_t nbytes, const bth_joint_part *parts,
                          size_t n_parts)
{
    uint8_t *out = bytes + HEAD_NBYTES;

    for (size_t i = 0; i < n_parts; i++) {
        uint32_t flags = (parts[i].is_chained_behind ? PART_IS_CHAINED_BEHIND : 0) |
                         (parts[i].is_chained_before ? PART_IS_CHAINED_BEFORE : 0);
        out = bth_put_u32(out, parts[i].storage | flags);
        out = bth_put_u32(out, parts[i].crc32);
        out = bth_put_u64(out, parts[i].at);
        out = bth_put_u64(out, parts[i].nbytes);
        memcpy(out, parts[i].start, sizeof parts[i].start);
        out += sizeof parts[i].start;
    }
    bth_blob_put_end(bytes, nbytes);
}

/* ---- reading ---- */

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
        (part->is_chained_before && !bth_joint_parts_are_neighbours(ticket, before, part)))
        return false;
    bool is_in_file = bth_joint_part_split(ticket, part).middle.nbytes > 0;
    bool is_chained = part->is_chained_before || part->is_chained_behind;
    return is_in_file
               ? ticket->compute_crc32 || part->crc32 == 0
               : !is_chained && part->crc32 == 0 && memcmp(part->start, zeros, sizeof zeros) == 0;
}

int bth_receipt_read(const bth_ticket *ticket, const void *bytes, size_t nbytes,
                     bth_receipt *receipt, berth_error *error)
{
    uint8_t identity[BTH_JOINT_IDENTITY_NBYTES];
    bth_joint_part before = {0};
    bth_cursor cursor;

    *receipt = (bth_receipt){.writer = UINT32_MAX};
    if (bth_blob_begin_reading(BTH_BLOB_RECEIPT, bytes, nbytes, &cursor, identity, error) < 0)
        return error->code;
    receipt->writer = bth_cursor_u32(&cursor);
    uint64_t n_parts = bth_cursor_u64(&cursor);
    if (!cursor.good)
        return bth_blob_fail(BTH_BLOB_RECEIPT, "it ends too early", error);
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
