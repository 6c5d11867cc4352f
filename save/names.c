/* SPDX-License-Identifier: BSD-3-Clause */
#include "save/names.h"

#include <string.h>

#include "config/error.h"
#include "config/memory.h"

/* The byte length of the UTF-8 sequence at `text`, or 0 if there is none. NUL ends it early. */
static size_t sequence_nbytes(const unsigned char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char lead = text[0];
    size_t n = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;

    if (n == 0 || lead > 0xF4)
        return 0;
    uint32_t point = n == 1 ? lead : lead & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (text[i] & 0x3Fu);
    }
    if (point < least[n] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return 0;
    return n;
}

/* What is wrong with a name's characters, or NULL. */
static const char *bad_characters(const char *name)
{
    for (const unsigned char *at = (const unsigned char *)name; *at;) {
        size_t n = sequence_nbytes(at);
        if (n == 0)
            return "is not UTF-8";
        if (*at < 0x20 || *at == 0x7F)
            return "holds a control character";
        if (*at == '\\')
            return "holds a backslash";
        at += n;
    }
    return NULL;
}

/* What is wrong with a name as a path, or NULL. */
static const char *bad_path(const char *name)
{
    bool letter = (name[0] | 0x20) >= 'a' && (name[0] | 0x20) <= 'z';

    if (letter && name[1] == ':')
        return "begins with a drive letter";
    for (const char *part = name;; part++) {
        size_t n = strcspn(part, "/");
        if (n == 0)
            return "has an empty part";
        if (n <= 2 && strncmp(part, "..", n) == 0)
            return "has a part \".\" or \"..\"";
        part += n;
        if (!*part)
            return NULL;
    }
}

static const char *bad_name(const char *name)
{
    if (!name || !*name)
        return "is empty";
    const char *bad = bad_characters(name);
    return bad ? bad : bad_path(name);
}

static const char *bad_archive_name(const char *name)
{
    const char *bad = bad_name(name);

    if (!bad && strchr(name, '/'))
        return "holds a slash";
    return bad;
}

int berth_check_archive_name(const char *name, berth_error *error)
{
    const char *bad = bad_archive_name(name);

    if (bad)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "the archive name \"%.200s\" %s", name ? name : "", bad);
    return 0;
}

int berth_check_record_name(const char *name, berth_error *error)
{
    const char *bad = bad_name(name);

    if (bad)
        return berth_fail(error, BERTH_E_ARGUMENT, NULL, BERTH_NO_OFFSET,
                          "the record name \"%.200s\" %s", name ? name : "", bad);
    return 0;
}

static bool is_ascii(const char *text)
{
    while (*text && (unsigned char)*text < 0x80)
        text++;
    return !*text;
}

char *berth_archive_name_of_path(const char *path)
{
    const char *base = path ? path : "";

    for (const char *at = base; *at; at++)
        if (*at == '/' || *at == '\\')
            base = at + 1;
    const char *dot = strrchr(base, '.');
    size_t n = dot ? (size_t)(dot - base) : strlen(base);
    char *name = berth_duplicate(base, n);
    if (!name || (is_ascii(path ? path : "") && !bad_archive_name(name)))
        return name;
    berth_release(name);
    return berth_duplicate("archive", strlen("archive"));
}
