/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The plan of a save: records, each placed, and the exact size of the file. Pure arithmetic on
 * names, sizes and an alignment (format/FORMAT.md sections 1 to 3); no byte is looked at and none
 * written. Immutable once closed: any thread may read it.
 */
#ifndef BTH_SAVE_PLAN_H
#define BTH_SAVE_PLAN_H

#include "config/options.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"

#define BTH_ID_NBYTES 40 /* decimal digits of .data/serialization_id */
#define BTH_NO_RECORD SIZE_MAX

/* One record: where it goes and where its bytes come from. */
typedef struct bth_plan_record {
    size_t name_at; /* of the full name in the plan's names */
    bth_place place;
    uint64_t central_offset; /* of its entry in the central directory */
    /* One of these three; none for an empty record and for the id, which is computed last. */
    const void *data;
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    const berth_storage *storage;
    void *context;       /* of read */
    uint8_t swap_nbytes; /* each unit of this many bytes is reversed; 1: none */
    bool no_crc32;       /* its CRC is written as 0 */
    uint32_t crc32;      /* that its bytes must have; 0: any */
    uint8_t device;      /* of the storage: devices[device - 1] of the plan; 0: none */
} bth_plan_record;

struct berth_plan {
    bth_plan_record *records; /* in the file's order */
    size_t n_records;
    size_t n_records_room;
    char *names; /* full names, NUL-terminated, one after the other */
    size_t names_nbytes;
    size_t names_room;
    char *archive; /* top folder */
    size_t archive_nbytes;
    uint32_t alignment;
    bool compute_crc32;
    size_t id_index;      /* of .data/serialization_id, or BTH_NO_RECORD */
    uint64_t tail_offset; /* from here on every byte depends on the CRCs before */
    uint64_t directory_offset;
    uint64_t directory_nbytes;
    uint64_t nbytes;          /* of the file */
    uint64_t asked_nbytes;    /* of all records */
    uint64_t device_nbytes;   /* of those that lie on devices */
    size_t n_storages;        /* records named data/… */
    size_t max_header_nbytes; /* of the longest header or directory entry */
    char alignment_text[8];
    struct bth_device_handle **devices; /* on which storages lie */
    uint8_t n_devices;
    bth_pickled pickled; /* of bth_plan_value */
};

/* Plans the records of berth_save_records. `archive`: the top folder, checked. */
int bth_plan_records(const char *archive, const berth_new_record *records, size_t n_records,
                     uint32_t flags, const struct berth_config *config, berth_plan **plan,
                     berth_error *error);
/* Plans a value: pickles it, one record a storage. */
int bth_plan_value(const char *archive, const berth_value *value, const struct berth_config *config,
                   berth_plan **plan, berth_error *error);

/* ---- what these two are made of ---- */

/* A plan without records. NULL and the error on failure. */
berth_plan *bth_plan_new(const char *archive, const struct berth_config *config, size_t n_records,
                         berth_error *error);
/* Appends a record at the next place. Only name, nbytes and the sources of `content` are used. */
int bth_plan_add(berth_plan *plan, const char *name, uint64_t nbytes,
                 const bth_plan_record *content, berth_error *error);
/* Refuses duplicate names (Z8) and places the directory. */
int bth_plan_close(berth_plan *plan, berth_error *error);

/* The full name, with the top folder; and without. */
const char *bth_plan_full_name(const berth_plan *plan, size_t i);
const char *bth_plan_name(const berth_plan *plan, size_t i);
/* The first record that ends after `offset`; n_records from the directory on. */
size_t bth_plan_find(const berth_plan *plan, uint64_t offset);

#endif
