/* SPDX-License-Identifier: BSD-3-Clause */
/* By which method a storage becomes memory, and why: facts and wishes give a decision. */
#ifndef BTH_LOAD_METHOD_H
#define BTH_LOAD_METHOD_H

#include "config/options.h"
#include "io/file_system.h"
#include "io/page_cache.h"

/* What is known of the source, and for a fetch of the moment. */
typedef struct bth_facts {
    bool is_memory;        /* the source is memory, */
    bool is_file;          /* or a file; else a function */
    bool cannot_map;       /* it was tried */
    const char *no_direct; /* why direct reads cannot be; NULL: they can, as far as is known */
    bth_file_system file_system;
    bool to_device;          /* its bytes stay on the host for a moment only */
    bool at_once;            /* a fetch: bytes are to be there when it ends */
    bth_page_cache residency; /* of a fetch: of what is asked for, */
    uint64_t asked_nbytes;   /* so many bytes that are not memory yet, */
    uint64_t free_nbytes;    /* and as many are free */
} bth_facts;

/* A static reason. MAP for sources in memory too: bytes are used where they lie. Never AUTO; to a
 * device never MAP. */
typedef struct bth_way {
    berth_load_method method;
    const char *reason;
} bth_way;

/*
 * Pure. `asked` is what a rule, a function or load.method asks for, `asked_by` says which; NULL: it
 * is load.method.
 */
bth_way bth_way_choose(const struct berth_config *config, const bth_facts *facts,
                       berth_load_method asked, const char *asked_by);

#endif
