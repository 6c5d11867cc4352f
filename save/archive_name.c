/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/plan.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "format/zip/zip.h"
#include "save/save_error.h"

/*
 * PyTorch's reader keeps this many bytes of a name: MZ_ZIP_MAX_ARCHIVE_FILENAME_SIZE less its NUL.
 * In these bytes of the first record's name it looks for the slash behind the archive's name. It
 * lists these bytes of every name as text.
 */
#define KEPT_NBYTES 511

static int name_check(const char *what, const char *name, bool is_archive, berth_error *error)
{
    berth_error bad;

    if (!name)
        name = "";
    bth_error_clear(&bad);
    if (bth_zip_check_name((const uint8_t *)name, strlen(name), true, is_archive, BERTH_NO_OFFSET,
                           &bad) < 0)
        return bth_fail_argument(error, "the %s: %s", what, bad.message);
    const char *slash = strrchr(name, '/');
    if (slash && !slash[1])
        return bth_fail_argument(error, "the %s: it ends with a slash: '%s'", what, name);
    return 0;
}

int bth_check_record_name(const char *name, berth_error *error)
{
    return name_check("record name", name, false, error);
}

int bth_check_archive_name(const char *name, berth_error *error)
{
    if (name_check("archive name", name, true, error) == 0 && strchr(name, '/'))
        bth_fail_argument(error, "the archive name: it contains a slash: '%s'", name);
    if (error->code == 0 && strlen(name) >= KEPT_NBYTES)
        bth_fail_argument(
            error,
            "the archive name: it has %zu bytes, and PyTorch opens no file whose archive "
            "name has more than %d: choose a shorter one",
            strlen(name), KEPT_NBYTES - 1);
    return error->code;
}

int bth_check_full_name_not_cut_in_character(const char *full_name, const char *name,
                                             berth_error *error)
{
    if (strlen(full_name) <= KEPT_NBYTES || ((unsigned char)full_name[KEPT_NBYTES] & 0xc0) != 0x80)
        return 0;
    return bth_fail(error, BERTH_E_ARGUMENT, name, BERTH_NO_OFFSET,
                    "with the archive's the name has %zu bytes, of which PyTorch keeps %d; they "
                    "end within a character, and it opens no such file: choose a shorter one",
                    strlen(full_name), KEPT_NBYTES);
}

static bool path_is_ascii(const char *text)
{
    while (*text && (unsigned char)*text < 0x80)
        text++;
    return !*text;
}

char *bth_archive_name_of_path(const char *path)
{
    const char *base = path ? path : "";
    berth_error bad;

    for (const char *at = base; *at; at++)
        if (*at == '/' || *at == '\\')
            base = at + 1;
    const char *dot = strrchr(base, '.');
    size_t n = dot ? (size_t)(dot - base) : strlen(base);
    char *name = bth_duplicate_text(base, n);
    bth_error_clear(&bad);
    if (!name || (path_is_ascii(path ? path : "") && bth_check_archive_name(name, &bad) == 0))
        return name;
    bth_release(name);
    return bth_duplicate_text("archive", strlen("archive"));
}
