/* SPDX-License-Identifier: BSD-3-Clause */
#include "base/delayed_log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/error.h"

void bth_notes_add(bth_notes *notes, const char *format, ...)
{
    va_list arguments;

    if (notes->n < BTH_MAX_NOTES) {
        va_start(arguments, format);
        (void)vsnprintf(notes->lines[notes->n], sizeof notes->lines[0], format, arguments);
        va_end(arguments);
    }
    notes->n++;
}

void bth_notes_log(const bth_notes *notes)
{
    for (size_t i = 0; i < notes->n && i < BTH_MAX_NOTES; i++)
        bth_log("%s", notes->lines[i]);
    if (notes->n > BTH_MAX_NOTES)
        bth_log("%zu more remarks about options are left out", notes->n - BTH_MAX_NOTES);
}
