/* SPDX-License-Identifier: BSD-3-Clause */
#include "config/option_text.h"

#include <stdatomic.h>
#include <string.h>

#include "base/lock.h"
#include "base/memory.h"
#include "base/utf8.h"

#define CHUNK_N 256
#define MAX_CHUNKS (BTH_MAX_OPTION_TEXTS / CHUNK_N)

/* Only added to; the number is stored last. So texts are read without the lock, and a forked child
 * can use what is there (X11). */
static char **chunks[MAX_CHUNKS];
static _Atomic int64_t n_texts = 1; /* with "" */
static bth_lock texts_lock;

bool bth_option_text_is_valid(const char *text, size_t n)
{
    bool has_end_space = n > 0 && (text[0] == ' ' || text[n - 1] == ' ');

    for (size_t i = 0, length; i < n; i += length ? length : 1) {
        const uint8_t *at = (const uint8_t *)text + i;
        length = bth_utf8_sequence_nbytes(at, n - i); /* 0: a name need not be UTF-8 */
        if (*at == '#' || (length > 0 && bth_utf8_is_control(at)))
            return false;
    }
    return n <= BTH_MAX_OPTION_TEXT_NBYTES && !has_end_space;
}

int64_t bth_option_count_texts(void)
{
    return atomic_load_explicit(&n_texts, memory_order_acquire);
}

const char *bth_option_text(int64_t number)
{
    if (number <= 0 || number >= bth_option_count_texts())
        return "";
    return chunks[number / CHUNK_N][number % CHUNK_N];
}

/* Under the lock. */
static int64_t text_add(const char *text, size_t n, int64_t max)
{
    int64_t number = bth_option_count_texts();

    if (number >= max)
        return -1;
    char ***chunk = &chunks[number / CHUNK_N];
    if (!*chunk)
        *chunk = bth_allocate_zeroed(CHUNK_N * sizeof **chunk);
    char *copy = *chunk ? bth_duplicate_text(text, n) : NULL;
    if (!copy)
        return -1;
    (*chunk)[number % CHUNK_N] = copy;
    atomic_store_explicit(&n_texts, number + 1, memory_order_release);
    return number;
}

int64_t bth_option_number_text(const char *text, size_t n, int64_t max)
{
    if (n == 0)
        return 0;
    (void)bth_lock_acquire(&texts_lock);
    int64_t number = bth_option_count_texts() - 1;
    while (number > 0 &&
           (strlen(bth_option_text(number)) != n || memcmp(bth_option_text(number), text, n) != 0))
        number--;
    if (number == 0)
        number = text_add(text, n, max);
    bth_lock_release(&texts_lock);
    return number;
}
