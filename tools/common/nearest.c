/* SPDX-License-Identifier: BSD-3-Clause */
/* What messages suggest: the most similar of some names, and words of a command line. */
#include <stdio.h>
#include <string.h>

#include "tools/common/nearest.h"
#include "tools/common/report.h"

static size_t smaller_of(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many letters must change, be added, left out, or change places with the next one. */
static size_t text_distance(const char *a, size_t a_n, const char *b, size_t b_n)
{
    size_t rows[3][NEAREST_NBYTES]; /* the last three of the table */

    for (size_t k = 0; k <= b_n; k++)
        rows[0][k] = k;
    for (size_t i = 1; i <= a_n; i++) {
        size_t *row = rows[i % 3], *above = rows[(i - 1) % 3];
        row[0] = i;
        for (size_t k = 1; k <= b_n; k++) {
            row[k] = smaller_of(smaller_of(above[k], row[k - 1]) + 1,
                                above[k - 1] + (a[i - 1] != b[k - 1]));
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                row[k] = smaller_of(row[k], rows[(i - 2) % 3][k - 2] + 1);
        }
    }
    return rows[a_n % 3][b_n];
}

void nearest_offer(nearest *best, const char *candidate)
{
    size_t n = strlen(best->word), m = strlen(candidate);

    if (n >= NEAREST_NBYTES || m >= NEAREST_NBYTES)
        return;
    size_t distance = text_distance(best->word, n, candidate, m);
    /* "lss" is near to "ls", "verfiy" to "verify": a third of the letters may differ. */
    if (distance > (n + 2) / 3 || (best->found[0] && distance >= best->distance))
        return;
    best->distance = distance;
    snprintf(best->found, sizeof best->found, "%s", candidate);
}

const char *nearest_hint(const nearest *best, const char *prefix, char *buffer)
{
    buffer[0] = '\0';
    if (best->found[0])
        snprintf(buffer, NEAREST_HINT_NBYTES, "; the nearest is '%s%s'", prefix, best->found);
    return buffer;
}

bool print_word(const char *path, char *text, size_t room)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/:%+,@=";
    bool is_plain = path[strspn(path, plain)] == '\0';
    size_t n = is_plain ? 0 : 1, nbytes = strlen(path) + sizeof "./''";

    for (const char *at = path; *at; at++)
        nbytes += *at == '\'' ? 3 : 0;
    if (!is_shown_as_it_is(path) || nbytes > room) {
        *text = '\0';
        return false;
    }
    if (*path == '-') { /* no option */
        text += snprintf(text, room, "./");
        room -= 2;
    }
    snprintf(text, room, "%s", is_plain ? path : "'");
    for (; !is_plain && *path; path++)
        n += (size_t)snprintf(text + n, room - n, *path == '\'' ? "'\\''" : "%c", *path);
    if (!is_plain)
        snprintf(text + n, room - n, "'");
    return true;
}
