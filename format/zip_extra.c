/* SPDX-License-Identifier: BSD-3-Clause */
/* Extra fields, of local headers and of the directory. */
#include "config/error.h"
#include "format/zip_fields.h"
#include "format/zip_inner.h"

int berth_zip_next_extra(berth_cursor *cursor, berth_zip_extra *extra, const char *record,
                         uint64_t at, berth_error *error)
{
    size_t begin = cursor->at;

    if (berth_cursor_left(cursor) == 0)
        return 0;
    extra->id = berth_cursor_u16(cursor);
    extra->nbytes = berth_cursor_u16(cursor);
    extra->bytes = berth_cursor_take(cursor, extra->nbytes);
    if (!cursor->good)
        return berth_fail(error, BERTH_E_ARCHIVE, record, at,
                          "a malformed extra field, %zu bytes before the end of the extra fields",
                          cursor->nbytes - begin);
    /* Z4: a second name beside the header's own. */
    if (extra->id == BERTH_ZIP_EXTRA_UNICODE_PATH)
        return berth_fail(error, BERTH_E_ARCHIVE, record, at,
                          "a Unicode path extra field, which gives the entry a second name");
    return 1;
}
