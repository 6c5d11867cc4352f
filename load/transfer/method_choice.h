/* SPDX-License-Identifier: BSD-3-Clause */
/* The choice of an I/O method for a range of bytes, from conditions and options. */
#ifndef BTH_LOAD_TRANSFER_METHOD_CHOICE_H
#define BTH_LOAD_TRANSFER_METHOD_CHOICE_H

#include "berth/more.h"
#include "config/options.h"
#include "io/file_system.h"
#include "io/page_cache.h"

/* The use of the bytes. */
typedef enum bth_use {
    BTH_USE_MEMORY,    /* they stay, in the map or in memory of the library */
    BTH_USE_CALLER,    /* they go to an address of the caller's */
    BTH_USE_DEVICE,    /* they go to a device */
    BTH_USE_CHECKSUMS, /* each byte is read once and summed */
} bth_use;

/* The conditions: of the source and, if bytes are moved now, of this transfer. */
typedef struct bth_conditions {
    bool is_memory;        /* the source is memory, */
    bool is_file;          /* or a file; else a function */
    bool cannot_map;       /* mapping the file failed */
    const char *no_direct; /* why direct reads are impossible; NULL: they may be possible */
    bth_file_system file_system;
    bth_use use;
    bool at_once;       /* all bytes are loaded when the transfer ends, not when they are touched */
    bool through_cache; /* leaves the bytes in the page cache: they are read again soon */
    bool loaded_before; /* this process has loaded the file before, past the page cache */
    /* Only if at_once: */
    bth_page_cache page_cache;
    uint64_t requested_nbytes; /* of these, not in memory yet */
    uint64_t free_nbytes;      /* so much memory is free */
} bth_conditions;

/* Never AUTO. MAP also if the source is memory, unless READ is requested: bytes are used in place.
 */
typedef struct bth_choice {
    berth_load_method method;
    const char *reason; /* static */
} bth_choice;

/* Pure. `requested`: the method that a rule, a function or load.method sets. `requested_by`: the
 * reason if a rule or a function set it; NULL: load.method. */
bth_choice bth_choose(const struct berth_config *config, const bth_conditions *conditions,
                      berth_load_method requested, const char *requested_by);

/* Z12: what is deflated is never mapped, and never read directly. */
bth_choice bth_choice_for_deflated(void);

bool bth_load_method_is_valid(berth_load_method method);

/* The method's name in statistics; static. fell_back: a direct read was refused. */
const char *bth_choice_method_name(bth_choice choice, bool is_memory, bool fell_back);

#endif
