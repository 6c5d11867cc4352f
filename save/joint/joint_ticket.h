/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * Save tickets: what the coordinator of a joint save tells its writers, as bytes. Any process can
 * have changed them: each number is checked before it is used, and reading allocates less than the
 * ticket has bytes.
 *
 *     "BerthTkt", u32 version                    little-endian, nothing between the fields
 *     16 bytes identity of the save
 *     u32 writers, u32 block, u32 CRCs are computed, u32 durability, u32 the coordinator's machine
 *     is big-endian, u32 alignment of the file's layout, u64 size of the file
 *     text path (for messages), text folder, text name of the temporary, text archive name
 *     u32 storages, u32 tensors
 *     storages, in the file's order: u32 number of data/N, u32 swap unit, u64 offset of the header,
 *                                    u64 nbytes; where their bytes lie follows from the layout
 *     tensors: u32 storage (place in this list), u32 dtype, u32 rank, u32 contiguous,
 *              u64 offset in bytes, rank x u64 shape, text name, text path
 *     u32 CRC-32 of all before
 *
 * A text is u32 nbytes, its bytes, a NUL. Most paths follow from the name; then their text is
 * empty: the name if that is a path itself (it is empty, or begins with "[" or "."), else ['NAME'].
 */
#ifndef BTH_SAVE_JOINT_TICKET_H
#define BTH_SAVE_JOINT_TICKET_H

#include <limits.h>

#include "berth/joint.h"
#include "config/options.h"
#include "format/bytes.h"
#include "save/plan.h"

/* ---- what tickets and receipts have in common: their head, their end, their texts ---- */

#define BTH_JOINT_IDENTITY_NBYTES 16
#define BTH_JOINT_VERSION 2
#define BTH_MACHINE_IS_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
/* Magic, version and identity; and the CRC behind all. */
#define BTH_BLOB_HEAD_NBYTES (8 + 4 + BTH_JOINT_IDENTITY_NBYTES)
#define BTH_BLOB_END_NBYTES 4

typedef enum bth_blob_kind { BTH_BLOB_TICKET, BTH_BLOB_RECEIPT } bth_blob_kind;

/*
 * Checks kind, version and CRC. *cursor is behind the head, and ends before the CRC.
 * BERTH_E_TRUNCATED, BERTH_E_ARGUMENT, BERTH_E_UNSUPPORTED, BERTH_E_CHECKSUM.
 */
int bth_blob_begin_reading(bth_blob_kind kind, const void *bytes, size_t nbytes, bth_cursor *cursor,
                           uint8_t identity[BTH_JOINT_IDENTITY_NBYTES], berth_error *error);
/* NULL: it is cut, holds a NUL, or has none behind it. */
const char *bth_blob_read_text(bth_cursor *cursor);
/* The blob has wrong numbers though its CRC is right. Returns the code. */
int bth_blob_fail(bth_blob_kind kind, const char *what, berth_error *error);

/* Return where the next field begins. */
uint8_t *bth_blob_put_head(uint8_t *out, bth_blob_kind kind,
                           const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES]);
uint8_t *bth_blob_put_text(uint8_t *out, const char *text);
/* Writes the CRC to the last bytes of the blob. */
void bth_blob_put_end(uint8_t *bytes, size_t nbytes);

/* ---- a ticket ---- */

/* Receipts have two bits beside the number of a storage. */
#define BTH_MAX_JOINT_STORAGES 0x3fffffffu

/* A storage whose bytes the writers have. */
typedef struct bth_ticket_storage {
    uint32_t record; /* the N of data/N */
    uint32_t swap_nbytes : 4;
    uint32_t is_next : 1; /* its header follows the storage before it in this list */
    uint32_t header_nbytes : 27;
    uint64_t data_offset;
    uint64_t nbytes;
} bth_ticket_storage;

/* A tensor on such a storage. */
typedef struct bth_ticket_tensor {
    const char *name;
    const char *path; /* "": it follows from the name */
    uint32_t storage;
    berth_dtype dtype;
    int32_t rank;
    bool is_contiguous;
    uint64_t offset; /* of its first element in the storage, in bytes */
    int64_t shape[BERTH_MAX_RANK];
} bth_ticket_tensor;

typedef struct bth_ticket {
    const uint8_t *bytes; /* the caller's */
    size_t nbytes;
    uint8_t identity[BTH_JOINT_IDENTITY_NBYTES];
    uint32_t n_writers;
    uint32_t block_nbytes; /* no two processes write the same block; a power of two */
    bool compute_crc32;
    uint32_t alignment;
    int64_t durability;
    uint64_t file_nbytes;
    const char *path;
    const char *folder;
    const char *temporary;
    const char *archive; /* top folder of the records' names */
    uint32_t n_storages;
    uint32_t n_tensors;
    bth_ticket_storage *storages;
    size_t tensors_at; /* where the first tensor begins in the bytes */
} bth_ticket;

/* The caller then calls bth_ticket_free_all, after a failure too. */
int bth_ticket_read(const void *bytes, size_t nbytes, bth_ticket *ticket, berth_error *error);
void bth_ticket_free_all(bth_ticket *ticket);
/*
 * The tensor that begins at byte *at; then *at is where the next one begins. False: it is the end
 * of the tensors. *at must come from tensors_at, from this function, or from
 * bth_ticket_find_tensors.
 */
bool bth_ticket_tensor_at(const bth_ticket *ticket, size_t *at, bth_ticket_tensor *tensor);
/* A name of a tensor on the storage, for messages: a path only if none has a short name. */
const char *bth_ticket_name_of_storage(const bth_ticket *ticket, size_t storage);

/* ---- joint_find.c: tensors by name ---- */

#define BTH_NO_TENSOR SIZE_MAX

/*
 * Where the tensors of slices begin, by their names or paths: (*at)[i] is that of slices[i], or
 * BTH_NO_TENSOR. Of several tensors of one name the first is found. The caller releases *at.
 */
int bth_ticket_find_tensors(const bth_ticket *ticket, const berth_slice *slices, size_t n,
                            size_t **at, berth_error *error);
/*
 * Refuses two different tensors of one path, which keys can have that are written alike: NaNs, and
 * long tuples. Other names are unique in a ticket that bth_ticket_write has made.
 */
int bth_ticket_check_paths(const bth_ticket *ticket, berth_error *error);
/* Whether a tensor's name is its path, too. */
static inline bool bth_name_is_path(const char *name)
{
    return name[0] == '\0' || name[0] == '[' || name[0] == '.';
}

/* ---- joint_outline.c: writing one ---- */

/*
 * The ticket of a plan whose storages without bytes the writers have. All members of `ticket` but
 * bytes, nbytes, storages, tensors_at and their numbers are set. The caller releases *bytes.
 */
int bth_ticket_write(const bth_ticket *ticket, const berth_plan *plan, const berth_value *outline,
                     uint8_t **bytes, size_t *nbytes, berth_error *error);
/* Whether record i of the plan is a storage without bytes. */
bool bth_plan_record_is_elsewhere(const berth_plan *plan, size_t i);

/* ---- joint_file.c: the temporary file ---- */

/*
 * The temporary file of a joint save, which every writer opens. Until the coordinator writes its
 * first block, it begins with a seal that holds the identity of the save. So a writer knows that it
 * is the file of its ticket, on any host, also if a later save has the same name.
 */

/* Writes the seal, so that other hosts see it. */
int bth_joint_file_seal(int fd, const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES],
                        berth_error *error);
/* Opens the file of a ticket for reading and writing. */
int bth_joint_file_open(const bth_ticket *ticket, int *fd, berth_error *error);
/* The absolute path of an open folder. */
int bth_joint_folder_path(int folder, char path[PATH_MAX], berth_error *error);

#endif
