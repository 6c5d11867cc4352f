/* SPDX-License-Identifier: BSD-3-Clause */
#include <berth/more.h>

#include "format/pickle/pickle.h"
#include "tests/support/fuzz/as_plain.h"

struct plain {
    const uint8_t *bytes;
    size_t nbytes;
    enum looked looked;
    struct parts parts;
    berth_info info;
};

bool is_subbyte(const berth_tensor *tensor)
{
    return tensor->dtype == BERTH_QUINT4X2 || tensor->dtype == BERTH_QUINT2X4;
}

uint64_t storage_at(const berth_named_tensor *named)
{
    const berth_tensor *tensor = named->tensor;

    return named->offset - (uint64_t)tensor->storage_offset * berth_dtype_nbytes(tensor->dtype);
}

/* Z10, Z11: the small records, and what Berth says of them. */
static void check_plain_info(const struct plain *plain)
{
    static const char *const small[] = {"data.pkl", ".format_version", ".storage_alignment",
                                        "byteorder"};
    const berth_info *info = &plain->info;
    const struct part *order = find_part(&plain->parts, "byteorder");
    size_t n = 0, n_crc32 = 0;

    for (size_t i = 0; i < plain->parts.n; i++) {
        n += !is_folder_part(&plain->parts.list[i]);
        n_crc32 += !is_folder_part(&plain->parts.list[i]) && plain->parts.list[i].crc32 != 0;
    }
    for (size_t i = 0; i < sizeof small / sizeof *small; i++) {
        const struct part *part = find_part(&plain->parts, small[i]);
        MUST(!part || is_whole_crc(part), "Z10: %s: its CRC", small[i]);
        if (part && part->method != 0)
            return;
    }
    MUST(info->n_records == n && info->n_crc32 == n_crc32, "%zu records", n);
    MUST(info->byteorder_recorded == (order != NULL) &&
             (!order || (strlen(info->byteorder) == order->nbytes &&
                         memcmp(info->byteorder, order->data, order->nbytes) == 0)),
         "Z11: byteorder");
    MUST((uint64_t)info->format_version == plain_number(&plain->parts, ".format_version", 0) &&
             (uint64_t)info->storage_alignment ==
                 plain_number(&plain->parts, ".storage_alignment", 0),
         "Z11: its numbers");
}

/* T1, Z5: the place of a storage as its own header, or where that was not read the layout, says. */
static const struct part *check_plain_place(const struct plain *plain,
                                            const berth_named_tensor *named)
{
    const berth_storage *storage = named->tensor->storage;
    uint64_t nbytes = berth_storage_get_info(storage)->nbytes, at = storage_at(named);
    bool is_calculated = plain->info.calculated_offsets;
    char record[MAX_NAME_NBYTES];

    if ((size_t)snprintf(record, sizeof record, "data/%s", berth_storage_get_info(storage)->key) >=
        sizeof record)
        return NULL;
    const struct part *part = find_part(&plain->parts, record);
    MUST(part && (part->method == 0) == (named->offset != BERTH_NO_OFFSET), "Z12: %s: no stored %s",
         named->path, record);
    if (part->method != 0) {
        MUST(!is_calculated && part->n >= nbytes, "Z12: %s: %u bytes", record, (unsigned)part->n);
        return part;
    }
    MUST(part->nbytes == nbytes ||
             (!is_calculated && part->nbytes > nbytes &&
              part->nbytes - nbytes < berth_dtype_nbytes(berth_storage_get_info(storage)->dtype)),
         "T1: %s: %u bytes", record, (unsigned)part->nbytes);
    if (plain->looked >= AT_HEADERS || !is_calculated)
        MUST(at == part->at, "Z5: %s: at byte %llu, not %zu", record, (unsigned long long)at,
             part->at);
    if (is_calculated)
        MUST(at == layout_at(part, plain_number(&plain->parts, ".storage_alignment", 64)),
             "%s: at byte %llu, not where the layout has it", record, (unsigned long long)at);
    return part;
}

/* Before the bytes of a storage their count (FORMAT.md 7); those of a view have none. */
static void check_plain_count(berth_checkpoint *checkpoint, const struct plain *plain,
                              const berth_named_tensor *named)
{
    const berth_storage *storage = NULL;
    uint64_t at = storage_at(named);

    while ((storage = berth_storage_next(checkpoint, storage)) && storage != named->tensor->storage)
        ;
    if (!storage)
        return;
    uint64_t item = berth_dtype_nbytes(berth_storage_get_info(storage)->dtype);
    MUST(at >= 8 && u64_at(plain->bytes + at - 8) * item == berth_storage_get_info(storage)->nbytes,
         "%s: no count before byte %llu", named->path, (unsigned long long)at);
}

/* torch.save can write several objects to one file. */
static bool is_old_object(const struct plain *plain, uint64_t at)
{
    uint64_t n = plain->nbytes - at;

    return bth_legacy_begins(plain->bytes + at,
                             (size_t)(n < BTH_LEGACY_MAGIC_NBYTES ? n : BTH_LEGACY_MAGIC_NBYTES));
}

/*
 * The last storage of a stream ends with the file, but for a part of an element, or before another
 * object; where each has a tensor to tell its place.
 */
static void check_plain_last(berth_checkpoint *checkpoint, const struct plain *plain)
{
    const berth_storage *storage = NULL;
    berth_named_tensor named;
    uint64_t end = 0, item = 1;

    while ((storage = berth_storage_next(checkpoint, storage))) {
        const berth_storage_info *info = berth_storage_get_info(storage);
        bool is_seen = false;
        for (size_t i = 0; !is_seen && i < berth_tensor_count(checkpoint) && i < 64; i++) {
            is_seen = berth_tensor_at(checkpoint, i, &named, NULL) == 0 &&
                      named.tensor->storage == storage && !is_subbyte(named.tensor) &&
                      berth_tensor_numel(named.tensor) > 0;
            if (is_seen && storage_at(&named) + info->nbytes > end) {
                end = storage_at(&named) + info->nbytes;
                item = berth_dtype_nbytes(info->dtype);
            }
        }
        if (!is_seen)
            return;
    }
    MUST(end == 0 ||
             (end <= plain->nbytes && (plain->nbytes - end < item || is_old_object(plain, end))),
         "%llu bytes behind the last storage", (unsigned long long)(plain->nbytes - end));
}

static bool is_complex(berth_dtype dtype)
{
    return dtype == BERTH_COMPLEX32 || dtype == BERTH_BCOMPLEX32 || dtype == BERTH_COMPLEX64 ||
           dtype == BERTH_COMPLEX128;
}

/* T5: elements [first, first + n) are those of the file, in this machine's order; or refused. */
static bool check_plain_elements(berth_checkpoint *checkpoint, const struct plain *plain,
                                 const berth_named_tensor *named, int64_t first, int64_t n)
{
    const berth_tensor *tensor = named->tensor;
    size_t item = berth_dtype_nbytes(tensor->dtype), unit = item;
    const uint8_t *file = plain->bytes + named->offset + (uint64_t)first * item;
    berth_tensor stored = *tensor;
    uint8_t read[16 * 16];

    stored.flags = 0; /* no bit is applied */
    if (berth_tensor_read(checkpoint, &stored, first, n, read, NULL) < 0)
        return false;
    if (is_complex(tensor->dtype))
        unit /= 2;
    for (size_t i = 0; i < (size_t)n * item; i++) {
        size_t in_file = plain->info.byteorder[0] == 'l' ? i : i - i % unit + unit - 1 - i % unit;
        MUST(read[i] == file[in_file], "T5: %s: not the file's byte %zu", named->path,
             (size_t)named->offset + in_file);
    }
    return true;
}

static void check_plain_tensor(berth_checkpoint *checkpoint, const struct plain *plain,
                               const berth_named_tensor *named)
{
    const berth_tensor *tensor = named->tensor;
    bool is_little = plain->info.byteorder[0] == 'l';
    int64_t numel = berth_tensor_numel(tensor), n = numel < 16 ? numel : 16;
    const struct part *part = NULL;

    if (tensor->flags & BERTH_META || is_subbyte(tensor) || numel == 0)
        return;
    if (plain->info.container[0] == 'z')
        part = check_plain_place(plain, named);
    else
        check_plain_count(checkpoint, plain, named);
    if (named->offset == BERTH_NO_OFFSET || !berth_tensor_is_contiguous(tensor) ||
        (!is_little && berth_storage_get_info(tensor->storage)->dtype != tensor->dtype))
        return;
    if (check_plain_elements(checkpoint, plain, named, 0, n) && part && plain->looked == AT_DATA)
        MUST(is_whole_crc(part), "Z10: %s: its CRC", named->path);
    (void)check_plain_elements(checkpoint, plain, named, numel - n, n);
    const void *data = is_little ? berth_storage_data(checkpoint, tensor->storage, NULL) : NULL;
    if (data)
        MUST(memcmp(data, plain->bytes + storage_at(named),
                    berth_storage_get_info(tensor->storage)->nbytes) == 0,
             "%s: its storage has other bytes than the file", named->path);
}

void check_as_plain(berth_checkpoint *checkpoint, const uint8_t *bytes, size_t nbytes,
                    const char *options)
{
    static struct plain plain;
    berth_named_tensor named;

    if (strstr(options, "load.check=none"))
        return;
    plain.bytes = bytes;
    plain.nbytes = nbytes;
    plain.looked = strstr(options, "load.check=directory") ? AT_SMALL
                   : strstr(options, "load.check=headers") ? AT_HEADERS
                                                           : AT_DATA;
    if (berth_get_info(checkpoint, &plain.info, NULL) < 0)
        return;
    if (plain.info.container[0] == 'z') {
        if (!check_plain(bytes, nbytes, &plain.parts, plain.looked))
            return;
        check_plain_info(&plain);
    } else {
        check_plain_last(checkpoint, &plain);
    }
    for (size_t i = 0; i < berth_tensor_count(checkpoint) && i < 64; i++)
        if (berth_tensor_at(checkpoint, i, &named, NULL) == 0)
            check_plain_tensor(checkpoint, &plain, &named);
}
