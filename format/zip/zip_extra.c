/* SPDX-License-Identifier: BSD-3-Clause */
/* Extra fields, of local headers and of the directory. */
#include "config/error.h"
#include "format/zip/zip.h"
#include "format/zip/zip_inner.h"

int bth_zip_next_extra(bth_cursor *cursor, bth_zip_extra *extra, const char *record, uint64_t at,
                       berth_error *error)
{
    size_t begin = cursor->at;

    if (bth_cursor_left(cursor) == 0)
        return 0;
    extra->id = bth_cursor_u16(cursor);
    extra->nbytes = bth_cursor_u16(cursor);
    extra->bytes = bth_cursor_bytes(cursor, extra->nbytes);
    if (!cursor->good)
        return bth_fail(error, BERTH_E_ARCHIVE, record, at,
                        "a malformed extra field, %zu bytes before the end of the extra fields",
                        cursor->nbytes - begin);
    /* Z4: a second name beside the header's own. */
    if (extra->id == BTH_ZIP_EXTRA_UNICODE_PATH)
        return bth_fail(error, BERTH_E_ARCHIVE, record, at,
                        "a Unicode path extra field, which gives the entry a second name");
    return 1;
}
