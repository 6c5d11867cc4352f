/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/joint/joint_blob.h"

#include <assert.h>
#include <string.h>

#include "base/error.h"
#include "format/checksum.h"

#define MAGIC_NBYTES 8

static const struct {
    const char *magic;
    const char *name;
} kinds[] = {
    [BTH_BLOB_TICKET] = {"BerthTkt", "ticket"}, [BTH_BLOB_RECEIPT] = {"BerthRct", "receipt"}};

const char *bth_blob_name(bth_blob_kind kind)
{
    return kinds[kind].name;
}

int bth_blob_fail(bth_blob_kind kind, const char *what, berth_error *error)
{
    return bth_fail_argument(error, "the %s is invalid: %s", kinds[kind].name, what);
}

static int blob_check_version(bth_blob_kind kind, uint32_t version, berth_error *error)
{
    if (version == BTH_JOINT_VERSION)
        return 0;
    return bth_fail_status(error, BERTH_E_UNSUPPORTED,
                           "the %s has version %u, this library has version %d: all processes of "
                           "a save need the same Berth",
                           kinds[kind].name, version, BTH_JOINT_VERSION);
}

static int blob_check_crc32(bth_blob_kind kind, const uint8_t *bytes, size_t nbytes,
                            berth_error *error)
{
    bth_cursor end = bth_cursor_make(bytes + nbytes - BTH_BLOB_END_NBYTES, BTH_BLOB_END_NBYTES);

    if (bth_cursor_u32(&end) == bth_crc32(0, bytes, nbytes - BTH_BLOB_END_NBYTES))
        return 0;
    return bth_fail_status(error, BERTH_E_CHECKSUM,
                           "the %s does not have its checksum: it was changed or cut on its way",
                           kinds[kind].name);
}

int bth_blob_begin_reading(bth_blob_kind kind, const void *bytes, size_t nbytes, bth_cursor *cursor,
                           uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], berth_error *error)
{
    if (!bytes)
        return bth_fail_argument(error, "the %s is NULL", kinds[kind].name);
    if (nbytes < BTH_BLOB_HEAD_NBYTES + BTH_BLOB_END_NBYTES)
        return bth_fail_status(error, BERTH_E_TRUNCATED, "the %s has only %zu bytes",
                               kinds[kind].name, nbytes);
    if (memcmp(bytes, kinds[kind].magic, MAGIC_NBYTES) != 0)
        return bth_fail_argument(error, "these bytes are no %s", kinds[kind].name);
    *cursor = bth_cursor_make(bytes, nbytes - BTH_BLOB_END_NBYTES);
    (void)bth_cursor_bytes(cursor, MAGIC_NBYTES);
    if (blob_check_version(kind, bth_cursor_u32(cursor), error) < 0)
        return error->code;
    const uint8_t *found = bth_cursor_bytes(cursor, BTH_JOINT_IDENTITY_NBYTES);
    assert(found); /* by the length above */
    memcpy(identity, found, BTH_JOINT_IDENTITY_NBYTES);
    return blob_check_crc32(kind, bytes, nbytes, error);
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
