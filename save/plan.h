/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * The plan of a save: the layout of its records, and the exact size of the file. Pure arithmetic on
 * names, sizes and an alignment (format/FORMAT.md sections 1 to 3); it reads and writes no data.
 * Immutable once closed: any thread may read it.
 */
#ifndef BTH_SAVE_PLAN_H
#define BTH_SAVE_PLAN_H

#include "config/options.h"
#include "format/layout.h"
#include "format/pickle/pickle.h"

#define BTH_NO_RECORD SIZE_MAX

/* A range of bytes of the file. */
typedef struct bth_range {
    uint64_t offset;
    uint64_t nbytes;
} bth_range;

/* One record: where it goes and where its bytes come from. */
typedef struct bth_plan_record {
    size_t name_at; /* of the full name in the plan's names */
    bth_layout_entry layout;
    uint64_t central_offset; /* of its entry in the central directory */
    /* One of these three. None: an empty record, or the id, which is computed last. */
    const void *data;
    int (*read)(void *context, void *buffer, size_t nbytes, uint64_t offset);
    const berth_storage *storage;
    void *context;       /* of read */
    uint8_t swap_nbytes; /* each unit of this many bytes is reversed; 1: none */
    bool is_part;        /* bytes without a header or an alignment: a part of any file */
    bool no_crc32;       /* its CRC is written as 0 */
    uint32_t crc32;      /* that its bytes must have; 0: any, unless it is_summed */
    bool is_summed;      /* its bytes have this CRC: they are not summed again */
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
    uint64_t nbytes;           /* of the file */
    uint64_t requested_nbytes; /* of all records */
    uint64_t device_nbytes;    /* of those that lie on devices */
    size_t n_storages;         /* records named data/…; of safetensors: tensors */
    size_t max_header_nbytes;  /* of the longest header or directory entry */
    char alignment_text[8];
    struct bth_device_handle **devices; /* on which storages lie */
    uint8_t n_devices;
    bth_pickled pickled; /* of a value */
    /* The bytes of the records one after the other, without headers and directory: a safetensors
     * file, where records[0] is `header` and the others are tensors; or BERTH_RECORDS_PLAIN. */
    bool is_plain;
    /* Parts of a file that others write too: records with or without headers, and with gaps between
     * them; no directory. */
    bool is_parts;
    uint8_t *header;      /* of a safetensors file; NULL: it is none */
    berth_storage *views; /* one for each tensor */
    size_t n_left_out;    /* values that are no plain tensors */
};

/* Plans a content. `archive`: the top folder. NULL on failure. */
berth_plan *bth_plan_make(const char *archive, const berth_content *content,
                          const struct berth_config *config, berth_error *error);

/* ---- parts of bth_plan_make ---- */

/* A plan without records. NULL and the error on failure. */
berth_plan *bth_plan_new(const char *archive, const struct berth_config *config, size_t n_records,
                         berth_error *error);
/* Appends a record; to a plain plan its bytes alone, under any name. Of `content` only the sources
 * of its bytes are used, and `is_part`. */
int bth_plan_add(berth_plan *plan, const char *name, uint64_t nbytes,
                 const bth_plan_record *content, berth_error *error);
/* The same at an offset that is not before the end of the last one. */
int bth_plan_add_at(berth_plan *plan, const char *name, uint64_t offset, uint64_t nbytes,
                    const bth_plan_record *content, berth_error *error);
/* Refuses duplicate names (Z8) and lays out the directory, unless the plan has neither. */
int bth_plan_close(berth_plan *plan, berth_error *error);

/* Whether record i holds a storage; of safetensors: a tensor. */
bool bth_plan_record_is_storage(const berth_plan *plan, size_t i);
/* The number of a device in the plan, which is added if it is not there. 0: the storage is not on
 * a device. Refuses one whose memory is gone. */
int bth_plan_add_device_of_storage(berth_plan *plan, const berth_storage *storage, uint8_t *number,
                                   berth_error *error);
/* The records of a safetensors file of these tensors (S1 to S4; plan_safetensors.c). */
int bth_plan_add_safetensors(berth_plan *plan, const berth_content *content, berth_error *error);

/* The full name, with the top folder; and without: NULL, if there is no record i. */
static inline const char *bth_plan_record_full_name(const berth_plan *plan, size_t i)
{
    return plan->names + plan->records[i].name_at;
}
static inline const char *bth_plan_record_name(const berth_plan *plan, size_t i)
{
    return i < plan->n_records ? bth_plan_record_full_name(plan, i) + plan->archive_nbytes + 1
                               : NULL;
}
static inline bool bth_plan_begins_before(const berth_plan *plan, size_t i, uint64_t offset)
{
    return i < plan->n_records && plan->records[i].layout.header_offset < offset;
}
/* Parts of record i in the file. */
static inline bth_range bth_plan_header_range(const berth_plan *plan, size_t i)
{
    const bth_layout_entry *at = &plan->records[i].layout;

    return (bth_range){at->header_offset, at->data_offset - at->header_offset};
}
static inline bth_range bth_plan_data_range(const berth_plan *plan, size_t i)
{
    return (bth_range){plan->records[i].layout.data_offset, plan->records[i].layout.nbytes};
}
static inline bth_range bth_plan_descriptor_range(const berth_plan *plan, size_t i)
{
    const bth_layout_entry *at = &plan->records[i].layout;

    return (bth_range){at->data_offset + at->nbytes, at->descriptor_nbytes};
}

/* ---- names: a strict reader must accept the names that a save writes (Z8) ---- */

/*
 * The top folder that PyTorch would use for a path (format/FORMAT.md section 1): the base name
 * without its last extension; "archive" for NULL, for a path that is not ASCII, and for a name
 * that Berth or PyTorch could not read back. Allocated. NULL: out of memory.
 */
char *bth_archive_name_of_path(const char *path);

/* Refuses a top folder that Berth's reader refuses, or that is too long for PyTorch. */
int bth_check_archive_name(const char *name, berth_error *error);

#endif
