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
 *     text path (for messages), text folder, text name of the temporary, text archive name; of an
 *     object in a store folder and temporary are ""
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

#include "berth/joint.h"
#include "config/options.h"
#include "format/bytes.h"
#include "save/image.h"
#include "save/plan.h"
#include "save/run.h"

/* ---- what tickets and receipts have in common ---- */

#define BTH_JOINT_IDENTITY_NBYTES 16
#define BTH_JOINT_VERSION 2
#define BTH_MACHINE_IS_BIG_ENDIAN (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
/* Magic, version and identity; and the CRC behind all. */
#define BTH_BLOB_HEAD_NBYTES (8 + 4 + BTH_JOINT_IDENTITY_NBYTES)
#define BTH_BLOB_END_NBYTES 4

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
 * of the tensors, or BTH_NO_TENSOR. *at must come from tensors_at, from this function, or from
 * bth_ticket_find_tensors_of_slices.
 */
bool bth_ticket_next_tensor(const bth_ticket *ticket, size_t *at, bth_ticket_tensor *tensor);
/* Of an object of parts, not of a file. */
static inline bool bth_ticket_is_of_object(const bth_ticket *ticket)
{
    return ticket->temporary && ticket->temporary[0] == '\0';
}
/* The storage in which a byte of the file lies; n_storages: in none. */
size_t bth_ticket_find_storage(const bth_ticket *ticket, uint64_t offset);
/* A name of a tensor on the storage, for messages: a path only if none has a short name. */
const char *bth_ticket_name_of_storage(const bth_ticket *ticket, size_t storage);

/*
 * The ticket of a plan whose storages without bytes the writers have. All members of `ticket` but
 * bytes, nbytes, storages, tensors_at and their numbers are set. The caller releases *bytes.
 */
int bth_ticket_write(const bth_ticket *ticket, const berth_plan *plan, const berth_value *outline,
                     uint8_t **bytes, size_t *nbytes, berth_error *error);
/* Whether record i of the plan is a storage without bytes. */
bool bth_plan_record_is_elsewhere(const berth_plan *plan, size_t i);

/* ---- joint_find.c: tensors by name ---- */

#define BTH_NO_TENSOR SIZE_MAX

/*
 * Where the tensors of slices begin, by their names or paths: (*at)[i] is that of slices[i], or
 * BTH_NO_TENSOR. Of several tensors of one name the first is found. The caller releases *at.
 */
int bth_ticket_find_tensors_of_slices(const bth_ticket *ticket, const berth_slice *slices, size_t n,
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

/* ---- joint_writer.c ---- */

/*
 * Writes the seal, with which the temporary of a joint save begins until the coordinator writes its
 * first block. By it a writer knows, on any host, that this is the file of its ticket, also if a
 * later save has the same name.
 */
int bth_joint_file_seal(int fd, const uint8_t identity[BTH_JOINT_IDENTITY_NBYTES],
                        berth_error *error);

/*
 * ---- receipts ----
 *
 * Receipts: what a writer of a joint save tells its coordinator, as bytes. Read as carefully as
 * tickets.
 *
 *     "BerthRct", u32 version, 16 bytes identity of the save
 *     u32 number of the writer, u64 number of parts
 *     parts, in the file's order: u32 storage (of the ticket), u32 CRC, u64 offset in it,
 *                                 u64 nbytes, 8 first bytes of the middle
 *     fragments: the head and the tail of each part
 *     u32 CRC-32 of all before
 *
 * A part is a range of a storage that the writer has written. The whole blocks of the file in it
 * are its middle, which is in the file; the CRC is of the middle, shifted over the bytes of the
 * storage behind it. The bytes before it are the head, those behind it the tail: the blocks that
 * they lie in have bytes of others, too, and are written by the coordinator. A part without a whole
 * block is all head; CRC and first bytes are 0.
 *
 * Parts that are whole storages, of which one follows the other in the file, are a chain: the
 * writer has written the descriptors and headers between them, too. At a link the middle goes up to
 * the end of the storage, and there is no fragment. Bit 31 of `storage`: the part is chained to the
 * one before; bit 30: to the one behind.
 */

/* A range of a storage of the ticket. */
typedef struct bth_joint_part {
    uint32_t storage : 30;
    uint32_t is_chained_behind : 1;
    uint32_t is_chained_before : 1;
    uint32_t crc32; /* of the middle, shifted over the rest of the storage */
    uint64_t at;
    uint64_t nbytes;
    uint8_t start[BTH_ID_START_NBYTES];
} bth_joint_part;

static inline bool bth_joint_part_is_chained(const bth_joint_part *part)
{
    return part->is_chained_before || part->is_chained_behind;
}

/* How a part lies in the file. */
typedef struct bth_joint_split {
    uint64_t head_nbytes;
    bth_range middle; /* of the file; nbytes 0: there is none */
    uint64_t tail_nbytes;
} bth_joint_split;

bth_joint_split bth_joint_part_split(const bth_ticket *ticket, const bth_joint_part *part);
/* Whether both are whole storages, and `part` follows `before` in the file. */
bool bth_joint_parts_can_chain(const bth_ticket *ticket, const bth_joint_part *before,
                               const bth_joint_part *part);

/* A part with its bytes, in this machine's byte order. */
typedef struct bth_slice_part {
    bth_joint_part part;
    const uint8_t *bytes; /* the caller's or a window's; NULL: only the fragments are kept */
    size_t kept_at;       /* where they are kept */
} bth_slice_part;

/* The receipt of n parts, which are in order and written. Fragments are at part->bytes, or at
 * kept + part->kept_at. The caller releases *bytes. */
int bth_receipt_write(const bth_ticket *ticket, uint32_t writer, const bth_slice_part *parts,
                      size_t n, const uint8_t *kept, uint8_t **bytes, size_t *nbytes,
                      berth_error *error);

typedef struct bth_receipt {
    uint32_t writer;
    size_t n_parts;
    const uint8_t *parts;     /* in its bytes */
    const uint8_t *fragments; /* likewise */
} bth_receipt;

/* Checks that it is a receipt of this save, and all its parts. */
int bth_receipt_read(const bth_ticket *ticket, const void *bytes, size_t nbytes,
                     bth_receipt *receipt, berth_error *error);
/* i < n_parts. */
bth_joint_part bth_receipt_part(const bth_receipt *receipt, size_t i);

/* ---- joint.c: an object ---- */

/* What writers have of one storage, together: each byte of it once. */
typedef struct bth_joint_sum {
    uint32_t crc32;
    uint8_t start[BTH_ID_START_NBYTES];
} bth_joint_sum;

/* Bytes of the file that the coordinator has. */
typedef struct bth_joint_rest {
    bth_range range;
    const uint8_t *bytes;
    bool is_lent; /* by the caller */
} bth_joint_rest;

/*
 * All bytes of the file but those of the ticket's storages, whose sums it needs: *rest is n ranges
 * in the file's order. They live as long as the joint save. Once.
 */
int bth_joint_render_rest(berth_joint *joint, const bth_ticket *ticket, const bth_joint_sum *sums,
                          const bth_joint_rest **rest, size_t *n, berth_error *error);

/* ---- joint.c: the receipts, put together ---- */

/* A part with its writer and its fragments, which lie in a receipt. There are millions. */
typedef struct bth_written_part {
    bth_joint_part part;
    uint32_t writer;
    const uint8_t *fragments; /* the head, then the tail */
} bth_written_part;

/* The parts of one storage: their fragments are the content of its record. */
typedef struct bth_joint_source {
    const bth_ticket *ticket;
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
} bth_joint_source;

typedef struct bth_joint_parts {
    bth_written_part *parts; /* in the file's order */
    size_t n_parts;
    bth_joint_source *sources; /* one a storage of the ticket */
    bth_present *present;
    bth_range *ranges;
    bth_run_parts run;
} bth_joint_parts;

/*
 * Checks that each byte of each storage is in just one part. Then the plan's storages without bytes
 * get the fragments as their content, and parts->run says what is left to write. The ticket and
 * the receipts, one a writer, must live as long as the parts. The caller calls
 * bth_joint_parts_free_all, after a failure too.
 */
int bth_joint_parts_make(const bth_ticket *ticket, const bth_receipt *receipts, berth_plan *plan,
                         bth_joint_parts *parts, berth_error *error);
void bth_joint_parts_free_all(bth_joint_parts *parts);

#endif
