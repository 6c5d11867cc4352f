/* SPDX-License-Identifier: BSD-3-Clause */
/* What tickets and receipts of joint saves have in common: their head, their end, their texts. */
#ifndef BTH_SAVE_JOINT_BLOB_H
#define BTH_SAVE_JOINT_BLOB_H

#include "format/bytes.h"
#include "save/plan.h"

#define BTH_JOINT_IDENTITY_NBYTES 16
#define BTH_JOINT_VERSION 2
#define BTH_MACHINE_IS_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
/* Magic, version and identity; and the CRC behind all. */
#define BTH_BLOB_HEAD_NBYTES (8 + 4 + BTH_JOINT_IDENTITY_NBYTES)
#define BTH_BLOB_END_NBYTES 4

typedef enum bth_blob_kind { BTH_BLOB_TICKET, BTH_BLOB_RECEIPT } bth_blob_kind;

/* "ticket" or "receipt". */
const char *bth_blob_name(bth_blob_kind kind);

/*
 * Checks kind, version and CRC. *cursor is behind the head, and ends before the CRC.
 * BERTH_E_TRUNCATED, BERTH_E_ARGUMENT, BERTH_E_UNSUPPORTED, BERTH_E_CHECKSUM.
 */
int bth_blob_begin_reading(bth_blob_kind kind, const void *bytes, size_t nbytes, bth_cursor *cursor,
                           uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], berth_error *error);
/* NULL: it is cut, holds a NUL, or has none behind it. */
const char *bth_blob_read_text(bth_cursor *cursor);
/* The blob has wrong numbers though its CRC is right. Returns the code. */
int bth_blob_fail(bth_blob_kind kind, const char *what, berth_error *error);

/* Return where the next field begins. */
uint8_t *bth_blob_put_head(uint8_t *out, bth_blob_kind kind,
                           const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES]);
uint8_t *bth_blob_put_text(uint8_t *out, const char *text);
/* Writes the CRC to the last bytes of the blob. */
void bth_blob_put_end(uint8_t *bytes, size_t nbytes);

#endif
