/* SPDX-License-Identifier: BSD-3-Clause */
/* Numbers of the zip format that its writer and its reader share (FORMAT.md 2, 3). */
#ifndef BTH_FORMAT_ZIP_ZIP_FIELDS_H
#define BTH_FORMAT_ZIP_ZIP_FIELDS_H

#define BTH_ZIP_LOCAL_SIGNATURE 0x04034b50u
#define BTH_ZIP_DESCRIPTOR_SIGNATURE 0x08074b50u
#define BTH_ZIP_CENTRAL_SIGNATURE 0x02014b50u
#define BTH_ZIP_END64_SIGNATURE 0x06064b50u
#define BTH_ZIP_LOCATOR_SIGNATURE 0x07064b50u
#define BTH_ZIP_END_SIGNATURE 0x06054b50u

#define BTH_ZIP_END64_RECORD_NBYTES 56
#define BTH_ZIP_LOCATOR_NBYTES 20
#define BTH_ZIP_END_RECORD_NBYTES 22

/* A 16 or 32 bit field that says "see the zip64 field". */
#define BTH_ZIP_SATURATED16 0xFFFFu
#define BTH_ZIP_SATURATED32 0xFFFFFFFFu

#define BTH_ZIP_FLAG_ENCRYPTED 0x0001u
#define BTH_ZIP_FLAG_DESCRIPTOR 0x0008u /* bit 3: sizes and CRC follow the data */
#define BTH_ZIP_FLAG_PATCH 0x0020u
#define BTH_ZIP_FLAG_STRONG 0x0040u
#define BTH_ZIP_FLAG_UTF8 0x0800u /* bit 11 */
#define BTH_ZIP_FLAG_MASKED 0x2000u

#define BTH_ZIP_DOS_FOLDER 0x10u
#define BTH_ZIP_UNIX_FOLDER 04u /* the highest four bits of a mode */
#define BTH_ZIP_UNIX_FILE 010u

#define BTH_ZIP_STORED 0
#define BTH_ZIP_DEFLATED 8
#define BTH_ZIP_LAST_VERSION 63 /* 6.3, of APPNOTE.TXT; what other readers know ends there */

#define BTH_ZIP_EXTRA_ZIP64 0x0001u
#define BTH_ZIP_EXTRA_UNICODE_PATH 0x7075u
#define BTH_ZIP_EXTRA_PADDING 0x4246u /* "FB", PyTorch's own */

#endif
