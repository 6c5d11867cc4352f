/* SPDX-License-Identifier: BSD-3-Clause */
#include "format/zip/zip.h"

#include <string.h>

#include "base/error.h"

const char *const bth_small_names[BTH_N_SMALL] = {"data.pkl", ".format_version",
                                                  ".storage_alignment", "byteorder"};

/* Shows 32 bytes at most. */
static int record_fail(const char *record, uint64_t offset, const uint8_t *bytes, size_t nbytes,
                       const char *fault, berth_error *error)
{
    return bth_fail(error, BERTH_E_ARCHIVE, record, offset, "'%.*s' (%zu bytes) is %s",
                    nbytes < 32 ? (int)nbytes : 32, (const char *)bytes, nbytes, fault);
}

int bth_record_parse_byteorder(const uint8_t *bytes, size_t nbytes, uint64_t offset, bool *little,
                               berth_error *error)
{
    *little = nbytes == 6 && memcmp(bytes, "little", 6) == 0;
    if (*little || (nbytes == 3 && memcmp(bytes, "big", 3) == 0))
        return BERTH_OK;
    return record_fail("byteorder", offset, bytes, nbytes, "neither 'little' nor 'big'", error);
}

/* What both Python's int() and C's strtoull() take for this number: white space may surround it; a
 * plus sign and zeros may precede it. Up to 9 digits behind these. */
static bool record_read_decimal(const uint8_t *bytes, size_t nbytes, uint32_t *value)
{
    static const uint8_t spaces[] = {' ', '\t', '\n', '\v', '\f', '\r'};
    const uint8_t *end = bytes + nbytes;
    uint32_t read = 0;
    while (bytes < end && memchr(spaces, *bytes, sizeof spaces))
        bytes++;
    while (end > bytes && memchr(spaces, end[-1], sizeof spaces))
        end--;
    if (end - bytes > 1 && *bytes == '+')
        bytes++;
    while (end - bytes > 1 && *bytes == '0')
        bytes++;
    if (bytes == end || end - bytes > 9)
        return false;
    for (; bytes < end; bytes++) {
        if (*bytes < '0' || *bytes > '9')
            return false;
        read = read * 10 + (*bytes - (uint32_t)'0');
    }
    *value = read;
    return true;
}

int bth_record_parse_alignment(const uint8_t *bytes, size_t nbytes, uint64_t offset,
                               uint32_t *alignment, berth_error *error)
{
    uint32_t read = 0;
    if (!record_read_decimal(bytes, nbytes, &read) || read < 1 || read > BTH_MAX_ALIGNMENT_READ)
        return record_fail(".storage_alignment", offset, bytes, nbytes,
                           "no decimal number from 1 to 65536", error);
    *alignment = read;
    return BERTH_OK;
}

int bth_record_parse_format_version(const uint8_t *bytes, size_t nbytes, uint64_t offset,
                                    uint32_t *version, berth_error *error)
{
    if (record_read_decimal(bytes, nbytes, version))
        return BERTH_OK;
    return record_fail(".format_version", offset, bytes, nbytes,
                       "no decimal number of up to 9 digits", error);
}

int bth_record_check_version(const char *record, const uint8_t *bytes, size_t nbytes,
                             uint64_t offset, berth_error *error)
{
    uint32_t read = 0;
    if (record_read_decimal(bytes, nbytes, &read) && read >= 1 && read <= BTH_MAX_VERSION_READ)
        return BERTH_OK;
    return record_fail(record, offset, bytes, nbytes, "no decimal number from 1 to 10", error);
}
